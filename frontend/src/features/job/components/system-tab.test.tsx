import { screen } from "@testing-library/react";
import { expect, it } from "vitest";

import type { SystemState } from "@/api/types";
import { SystemTab } from "@/features/job/components/system-tab";
import { job } from "@/testing/documents";
import { render } from "@/testing/render";
import { server } from "@/testing/server";

const TIMES = ["2026-03-01T10:00:00Z", "2026-03-01T10:01:00Z"];
const AT = { lowest_at: ["n1:0", "n1:0"], highest_at: ["n2:3", "n2:3"] };
const SYSTEM: SystemState = {
  interval_seconds: 60,
  series: [
    {
      name: "system/gpu_temperature", title: "GPU temperature", unit: "celsius", times: TIMES,
      means: [50, 55], lowest: [40, 41], highest: [60, 83], ...AT,
    },
    {
      name: "system/gpu_ecc_uncorrected", title: "Uncorrected ECC errors", unit: "count", times: TIMES,
      means: [0, 0], lowest: [0, 0], highest: [0, 0], ...AT,
    },
  ],
  nodes: [
    { node: "n2", time: "2026-03-01T10:01:30Z", values: { "system/gpu_temperature": [70, null, 83], "system/disk_used": [0.5] } },
  ],
};

it("draws mean and extremes with their node, and the newest sample of each node", async () => {
  server.answer("GET /jobs/{job_id}/system", SYSTEM);
  render(<SystemTab job={job()} />);
  const chart = await screen.findByRole("img", { name: /GPU temperature/ });
  expect(chart.getAttribute("aria-label")).toBe(
    "GPU temperature: highest, now n2:3 83 °C, mean 55 °C, lowest, now n1:0 41 °C",
  );
  expect(screen.getAllByRole("row").map((row) => row.textContent)[1]).toMatch(/^n283 °C50%/);
  expect(screen.queryByText("Uncorrected ECC errors")).toBeNull();
});

it("says that there are no samples", async () => {
  server.answer("GET /jobs/{job_id}/system", { interval_seconds: 60, series: [], nodes: [] });
  render(<SystemTab job={job()} />);
  await screen.findByText("No samples yet");
  expect(screen.queryByRole("table")).toBeNull();
});
