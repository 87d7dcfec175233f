import { screen, within } from "@testing-library/react";
import { describe, expect, it } from "vitest";

import type { GoodputStatement } from "@/api/types";
import { CostsPage } from "@/features/budgets/components/costs-page";
import { render } from "@/testing/render";
import { server } from "@/testing/server";

const SUMS = {
  currency: "EUR",
  slot_seconds: 7200,
  cost: 5_000_000,
  charged: 4_000_000,
  fault_slot_seconds: 0,
  fault_cost: 0,
  saved_cost: 0,
  milligrams: 0,
  saved_milligrams: 0,
};
const RANGE = { after: "2026-04-10T00:00:00Z", before: "2026-05-10T00:00:00Z" };

const AMOUNTS = { slot_seconds: 400, cost: 3_640_000, unproductive_slot_seconds: 120, unproductive_cost: 640_000 };
const GOODPUT: GoodputStatement["items"][number] = {
  currency: "EUR",
  slot_seconds: 500,
  goodput: 0.7,
  cost: 4_000_000,
  refunded: 500_000,
  charged: 3_500_000,
  categories: [{ activity: "training", slot_seconds: 400, share: 1, cost: 3_640_000, phases: [] }],
  uncounted: { slot_seconds: 100, cost: 360_000 },
  interruptions: [
    {
      reason: { code: "process_killed", message: "", remedy: "", blame: "infrastructure", runbook: "" },
      attempts: 0,
      restarts: 12,
      steps_lost: 1017,
      lost_slot_seconds: 80,
      stalled_slot_seconds: 0,
      startup_slot_seconds: 20,
      cost: 620_000,
      refunded: 500_000,
    },
  ],
  jobs: [
    { ...AMOUNTS, id: "job_1", name: "tiny" },
    { ...AMOUNTS, id: null, name: null },
  ],
};

describe("costs", () => {
  it("lists the most expensive jobs with links, and sums the others", async () => {
    server.answer("GET /costs", { ...RANGE, items: [{ ...SUMS, team: "red" }], rest: [] });
    server.answer("GET /usage-report", { month: "2026-05", items: [] });
    server.answer("GET /goodput", { ...RANGE, items: [] });
    const { user } = render(<CostsPage />);
    await screen.findByText("red");
    expect(screen.getAllByText("Not known")).toHaveLength(2); // CO₂, and what was saved of it
    server.answer("GET /costs", {
      ...RANGE,
      items: [
        { ...SUMS, job: "job_1", job_name: "tiny" },
        { ...SUMS, job: null, job_name: null },
      ],
      rest: [{ ...SUMS, groups: 1234, slot_seconds: 36_000 }],
    });
    await user.selectOptions(screen.getByLabelText("By"), "job");
    const link = await screen.findByRole("link", { name: "tiny" });
    expect(link.getAttribute("href")).toBe("/jobs/job_1");
    within(screen.getByRole("table")).getByText("Not shown");
    screen.getByText(/^And 1,234 more: 10 h, 4 EUR charged/);
    screen.getByText(/teams that are not yours/);
  });

  it("shows what the slots of a team were held for", async () => {
    server.answer("GET /costs", { ...RANGE, items: [{ ...SUMS, team: "red" }, { ...SUMS, team: "blue" }], rest: [] });
    server.answer("GET /usage-report", { month: "2026-05", items: [] });
    server.answer("GET /goodput", { ...RANGE, items: [GOODPUT] });
    const { user } = render(<CostsPage />);
    const sums = await screen.findByRole("table", { name: "Slot time by activity" });
    within(sums).getByRole("row", { name: "Not divided yet 1m 40s 0.36" });
    within(screen.getByRole("table", { name: /^Interruptions/ })).getByText("process killed");
    const jobs = screen.getByRole("table", { name: /^Jobs with the most/ });
    expect(within(jobs).getByRole("link", { name: "tiny" }).getAttribute("href")).toBe("/jobs/job_1");
    within(jobs).getByText("Not shown");
    server.answer("GET /usage-report", { month: "2026-05", items: [] });
    server.answer("GET /goodput", { ...RANGE, items: [{ ...GOODPUT, goodput: 0.25 }] });
    await user.selectOptions(screen.getByLabelText("Team"), "blue");
    await screen.findByText("25%");
  });
});
