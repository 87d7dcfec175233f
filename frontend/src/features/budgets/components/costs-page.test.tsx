import { screen, within } from "@testing-library/react";
import { describe, expect, it } from "vitest";

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

describe("costs", () => {
  it("lists the most expensive jobs with links, and sums the others", async () => {
    server.answer("GET /costs", { ...RANGE, items: [{ ...SUMS, team: "red" }], rest: [] });
    const { user } = render(<CostsPage />);
    await screen.findByText("red");
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
});
