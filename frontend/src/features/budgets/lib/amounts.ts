import type { Budget } from "@/api/types";

/** Amounts are integers: slot-seconds, or millionths of the currency. */
const HOUR = 3600;
const MICRO = 1_000_000;
/** Between thousands, in fields of amounts. */
export const THOUSANDS = ",";

type Measured = Pick<Budget, "unit" | "currency">;

export function scaleOf(budget: Pick<Budget, "unit">): number {
  return budget.unit === "money" ? MICRO : HOUR;
}

export function toAmount(budget: Pick<Budget, "unit">, written: string): number {
  return Math.round(Number(written.replaceAll(THOUSANDS, "")) * scaleOf(budget));
}

export function figure(value: number): string {
  const size = Math.abs(value);
  const decimals = size === 0 || size >= 1000 ? 0 : size >= 10 ? 1 : size >= 0.1 ? 2 : 4;
  return value.toLocaleString("en-GB", { maximumFractionDigits: decimals });
}

/** 7200 slot-seconds -> "2 slot-hours"; 1500000 millionths -> "1.5 USD". */
export function amountText(budget: Measured, amount: number): string {
  const unit = budget.unit === "money" ? budget.currency : "slot-hours";
  return `${figure(amount / scaleOf(budget))} ${unit}`;
}

export interface Parts {
  spent: number;
  reserved: number;
  forecast: number | null;
}

/** Parts of a bar, in percent of the amount or, when more was given out, of all of that. */
export function partsOf(budget: Pick<Budget, "current" | "forecast">): Parts {
  const { current, forecast } = budget;
  if (current === null) return { spent: 0, reserved: 0, forecast: null };
  const total = Math.max(current.amount, current.spent + current.reserved, 1);
  const expected = forecast === null ? null : Math.min(100, (100 * forecast.p50) / total);
  return { spent: (100 * current.spent) / total, reserved: (100 * current.reserved) / total, forecast: expected };
}

const WEEKDAYS = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];

export function weekdaysText(weekdays: number[]): string {
  const days = [...weekdays].sort((one, other) => one - other);
  if (days.length === 7) return "every day";
  if (days.join() === "0,1,2,3,4") return "Mon–Fri";
  if (days.join() === "5,6") return "Sat, Sun";
  return days.map((day) => WEEKDAYS[day] ?? "?").join(", ");
}
