import { expect, test } from "vitest";

import { amountText, partsOf, toAmount, weekdaysText } from "@/features/budgets/lib/amounts";

const HOURS = { unit: "slot_hours", currency: "" } as const;
const MONEY = { unit: "money", currency: "EUR" } as const;

test("amounts are shown in hours or money and read back the same", () => {
  expect(amountText(HOURS, 7200)).toBe("2 slot-hours");
  expect(amountText(MONEY, 1_500_000)).toBe("1.5 EUR");
  expect(amountText(HOURS, 36)).toBe("0.01 slot-hours");
  expect(toAmount(HOURS, "2.5")).toBe(9000);
  expect(toAmount(MONEY, "0.000001")).toBe(1);
});

test("a bar of spending beyond the amount stays at 100 %", () => {
  const period = { amount: 100, spent: 150, reserved: 50, available: -100, lost: 0, start: "", end: "", warned_at: null };
  const parts = partsOf({ current: period, forecast: null });
  expect(parts.spent + parts.reserved).toBe(100);
  expect(partsOf({ current: null, forecast: null })).toEqual({ spent: 0, reserved: 0, forecast: null });
});

test("weekdays are named", () => {
  expect(weekdaysText([0, 1, 2, 3, 4])).toBe("Mon–Fri");
  expect(weekdaysText([6, 2])).toBe("Wed, Sun");
});
