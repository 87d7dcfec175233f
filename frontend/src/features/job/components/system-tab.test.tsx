import { fireEvent, screen, within } from "@testing-library/react";
import { expect, it } from "vitest";

import type { PreflightReport, SystemState } from "@/api/types";
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

const REPORT: PreflightReport = {
  result: "slow", ranks: 4, nodes: 2, device: "H100", seconds: 9.25, skipped: ["object store: not reached"],
  measures: [
    {
      name: "memory bandwidth", unit: "bytes_per_second", count: 4, median: 2e12, lowest: 9e11, lowest_at: "n2, rank 3",
      highest: 2e12, expected: 3.35e12,
    },
    {
      name: "pairs, each way", unit: "bytes_per_second", count: 4, median: 5e10, lowest: 1e10,
      lowest_at: "n1, rank 0 - n2, rank 2", highest: 5e10, expected: null,
    },
  ],
  collectives: [{ name: "all_reduce", bytes: 2 ** 26, seconds: 0.0008, bus_bytes_per_second: 1.6e11, expected: 4.8e11 }],
  findings: [
    { severity: "slow", nodes: ["n2"], because: "memory bandwidth of n2, rank 3 is 900 GB/s", measure: "memory bandwidth" },
    { severity: "slow", nodes: [], because: "the link between n1 and n2 is slow", measure: "pairs, each way" },
  ],
};

it("shows the preflight of each attempt, with the odd node and the odd pair marked", async () => {
  server.answer("GET /jobs/{job_id}/system", SYSTEM);
  const time = "2026-03-01T10:00:00Z";
  server.answer("GET /jobs/{job_id}/preflights", {
    items: [
      { ...REPORT, attempt: 2, time },
      { ...REPORT, attempt: 1, time, result: "ok", findings: [], device: "A100" },
    ],
    next_cursor: null,
  });
  render(<SystemTab job={job({ resolved_spec: { preflight: true } })} />);
  const rows = within(await screen.findByRole("table", { name: "Measures" })).getAllByRole("row");
  expect(rows.map((row) => row.textContent).slice(1)).toEqual([
    "Memory bandwidth2 TB/s900 GB/sn2, rank 3 Slow3.35 TB/s",
    "Pairs, each way50 GB/s10 GB/sn1, rank 0 - n2, rank 2 Slow–",
  ]);
  const findings = within(screen.getByRole("list", { name: "Findings" })).getAllByRole("listitem");
  expect(findings.map((each) => each.querySelector("strong")?.textContent)).toEqual(["n2", "Link"]);
  const collectives = within(screen.getByRole("table", { name: "Collectives" })).getAllByRole("row");
  expect(collectives[1]?.textContent).toBe("All reduce64 MiB800 µs160 GB/s480 GB/s");
  fireEvent.change(screen.getByRole("combobox", { name: "Attempt" }), { target: { value: "1" } });
  expect(screen.getByText(/A100/)).toBeTruthy();
  expect(screen.queryByRole("list", { name: "Findings" })).toBeNull();
});

it("shows that there are no samples", async () => {
  server.answer("GET /jobs/{job_id}/system", { interval_seconds: 60, series: [], nodes: [] });
  render(<SystemTab job={job()} />);
  await screen.findByText("No samples yet");
  expect(screen.queryByRole("table")).toBeNull();
});
