import { describe, expect, it } from "vitest";

import type { AdmissionSettings, QuotaNode, QuotaShare } from "@/api/types";
import { changesOf, INITIAL_WORKLOAD, rowsOf, toRequest } from "@/features/simulator/lib/proposal";

const share: QuotaShare = {
  accelerator: "h100", governed: true, nominal: 8, used: 0, borrowed: 0, lent: 0, available: 8, teams: 0,
};
const red: QuotaNode = {
  id: "q1", kind: "team", name: "red", path: "red", parent: "q0", depth: 1, team: null, weight: 1, max_running_jobs: null,
  max_queued_jobs: null, max_slots: null, max_slots_per_job: null, max_run_seconds: null, max_storage_bytes: null,
  idle_warning_seconds: null, idle_pause_seconds: null,
  grants: [{ accelerator: "h100", nominal: 8, borrow_limit: 2, lend_limit: null }], shares: [share], running_jobs: 0,
  queued_jobs: 0, slots_used: 0,
};
const blue: QuotaNode = { ...red, id: "q2", name: "blue", path: "blue", grants: [] };
const settings: AdmissionSettings = {
  fair_share: true, half_life_seconds: 60, age_step_seconds: 0, backfill: true, preempt: true, protected_seconds: 0,
};

describe("a proposal", () => {
  const rows = rowsOf([red, blue]);

  it("has a row for each node, with or without a grant", () => {
    expect(rows.map((row) => [row.path, row.nominal, row.borrow_limit])).toEqual([["red", 8, 2], ["blue", "", ""]]);
  });

  it("wishes only what was edited", () => {
    expect(changesOf(rows, rows)).toEqual([]);
    const edited = rows.map((row) => (row.path === "blue" ? { ...row, nominal: 4 } : row));
    expect(changesOf(rows, edited)).toEqual([
      { node: "q2", grants: { h100: { nominal: 4, borrow_limit: null, lend_limit: null } } },
    ]);
  });

  it("removes a grant that was emptied", () => {
    const emptied = rows.map((row) => ({ ...row, nominal: "", borrow_limit: "" }));
    expect(changesOf(rows, emptied)).toEqual([{ node: "q1", grants: { h100: null } }]);
  });

  it("asks for history or for made-up jobs, and names only other settings", () => {
    const switches = { fair_share: true, backfill: false, preempt: true };
    expect(toRequest(INITIAL_WORKLOAD, [], switches, settings)).toEqual({ history_days: 30, settings: { backfill: false } });
    const wish = toRequest({ ...INITIAL_WORKLOAD, kind: "generate", days: 7 }, [], { ...switches, backfill: true }, settings);
    expect(wish).toEqual({ generate: { days: 7, jobs_per_day: 100, largest: 8 } });
  });
});
