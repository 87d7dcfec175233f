import { screen, within } from "@testing-library/react";
import { describe, expect, it } from "vitest";

import type { UsageReport } from "@/api/types";
import { UsageReportPanel } from "@/features/budgets/components/usage-report-panel";
import { render } from "@/testing/render";
import { server } from "@/testing/server";

const KILLED = { code: "process_killed", message: "", remedy: "", blame: "infrastructure", runbook: "" };
const RED: UsageReport["items"][number] = {
  team: "red",
  currency: "EUR",
  slot_seconds: 7200,
  cost: 5_000_000,
  charged: 4_000_000,
  fault_slot_seconds: 600,
  fault_cost: 1_000_000,
  productive: { slot_seconds: 3600, cost: 2_500_000 },
  unproductive: [
    { activity: "lost", reason: KILLED, slot_seconds: 1800, cost: 1_250_000 },
    { activity: "idle", reason: null, slot_seconds: 600, cost: 400_000 },
  ],
  uncounted: { slot_seconds: 1200, cost: 850_000 },
  energy: {
    kwh: 2,
    source: "estimated",
    measured_kwh: 0,
    measured_slot_seconds: 0,
    estimated_kwh: 2,
    estimated_slot_seconds: 7200,
    unknown_slot_seconds: 0,
    carbon_grams: null,
    carbon_slot_seconds: 0,
  },
};

const cells = (table: HTMLElement) =>
  within(table)
    .getAllByRole("row")
    .slice(1)
    .map((row) => within(row).getAllByRole("cell").map((cell) => cell.textContent));

describe("monthly report", () => {
  it("shows a row for each team, what was not productive by cause, and exports the month that is shown", async () => {
    server.answer("GET /usage-report", { month: "2026-04", items: [RED] });
    const { user } = render(<UsageReportPanel />);
    expect(cells(await screen.findByRole("table", { name: "Usage by team" }))).toEqual([
      ["red", "2h 00m, 5.00 EUR", "1h 00m, 2.50 EUR", "40m 00s, 1.65 EUR", "20m 00s, 0.85 EUR", "10m 00s, 1.00 EUR", "2 kWh, estimated", "Not known"],
    ]);
    expect(cells(screen.getByRole("table", { name: "What was not productive" }))).toEqual([
      ["red", "Lost, not saved", "process killed", "30m 00s", "1.25 EUR"],
      ["red", "Idle nodes", "None known", "10m 00s", "0.40 EUR"],
    ]);
    const months = screen.getByRole<HTMLSelectElement>("combobox", { name: "Month (UTC)" });
    const before = months.options[1]?.value ?? "";
    server.answer("GET /usage-report", { month: before, items: [] });
    await user.selectOptions(months, before);
    await screen.findByText("No usage in this month.");
    const link = screen.getByRole("link", { name: "Export month as CSV" });
    expect(link.getAttribute("href")).toContain(`month=${before}`);
  });
});
