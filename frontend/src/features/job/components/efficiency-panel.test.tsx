import { screen, within } from "@testing-library/react";
import { describe, expect, it } from "vitest";

import type { Efficiency } from "@/api/types";
import { EfficiencyPanel } from "@/features/job/components/efficiency-panel";
import { job } from "@/testing/documents";
import { render } from "@/testing/render";
import { server } from "@/testing/server";

const NONE = { gpu_utilisation: null, gpu_memory: null, gpu_power: null, cpu_utilisation: null, host_memory: null, host_power: null };
const UNKNOWN: Efficiency = {
  currency: "EUR",
  slot_seconds: 6000,
  productive_slot_seconds: 4200,
  idle_slot_seconds: 600,
  goodput: 0.7,
  cost: 3_640_000,
  unproductive_cost: 1_092_000,
  loads: NONE,
  memory: null,
  energy: {
    kwh: null,
    source: "unknown",
    measured_kwh: 0,
    measured_slot_seconds: 0,
    estimated_kwh: 0,
    estimated_slot_seconds: 0,
    unknown_slot_seconds: 6000,
    carbon_grams: null,
    carbon_slot_seconds: 0,
  },
  suggestions: [],
};

async function rows(found: Efficiency): Promise<Record<string, string>> {
  server.answer("GET /jobs/{job_id}/efficiency", found);
  render(<EfficiencyPanel job={job()} />);
  const table = await screen.findByRole("table", { name: "Efficiency" });
  const cells = within(table).getAllByRole("row").map((row) => [...row.children].map((cell) => cell.textContent));
  return Object.fromEntries(cells) as Record<string, string>;
}

describe("efficiency", () => {
  it("shows what is not known as not known, and never as zero", async () => {
    const found = await rows(UNKNOWN);
    expect(found["Productive"]).toBe("70%, 1h 10m");
    expect(found["Cost of what was not productive"]).toBe("1.09 EUR");
    for (const name of ["GPU utilisation", "CPU utilisation", "Power of a GPU", "Peak memory of a process", "Energy", "CO₂"]) {
      expect(found[name]).toBe("Not known");
    }
  });

  it("marks energy that is estimated or not complete, and lists advice with its change", async () => {
    const found = await rows({
      ...UNKNOWN,
      loads: { ...NONE, gpu_utilisation: { mean: 0.35, p10: 0.05, highest: 1, highest_at: "n1:3" } },
      memory: { peak_bytes: 20 * 2 ** 30, peak_rank: 3, mean_peak_bytes: 2 ** 30, available_bytes: null, headroom_bytes: null },
      energy: {
        ...UNKNOWN.energy,
        kwh: 1.5,
        source: "mixed",
        measured_slot_seconds: 3600,
        estimated_slot_seconds: 1800,
        unknown_slot_seconds: 600,
        carbon_grams: 750,
        carbon_slot_seconds: 5400,
      },
      suggestions: [
        { advice: "fewer_slots", message: "The slots were 35% in use.", changes: { resources: { nodes: 1 } }, saving: 1_820_000 },
      ],
    });
    expect(found["GPU utilisation"]).toBe("mean 35%, p10 5%, highest 100% (n1:3)");
    expect(found["Energy"]).toBe("1.5 kWh, mixed, without 10m 00s not known");
    expect(found["CO₂"]).toBe("0.75 kg, of 1h 30m slot time");
    expect(found["Peak memory of a process"]).toMatch(/rank 3.*headroom not known/);
    const advice = screen.getByRole("region", { name: "Use fewer slots" });
    expect(advice.textContent).toMatch(/saves at most 1.82 EUR \(estimate\)/);
    expect(advice.textContent).toContain('{"resources":{"nodes":1}}');
  });
});
