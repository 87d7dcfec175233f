import { describe, expect, it } from "vitest";

import type { QuotaNode } from "@/api/types";
import { changeOf, draftOf, NEW_GRANT, newGroup, placesFor } from "@/features/quotas/lib/draft";

const top: QuotaNode = {
  id: "q0", kind: "organisation", name: "organisation", path: "organisation", parent: null, depth: 0, team: null, weight: 1,
  max_running_jobs: null, max_queued_jobs: null, max_slots: null, max_slots_per_job: null, max_run_seconds: null,
  max_storage_bytes: null,
  idle_warning_seconds: null, idle_pause_seconds: null, grants: [], shares: [], running_jobs: 0, queued_jobs: 0, slots_used: 0,
};
const lab: QuotaNode = {
  ...top, id: "q1", kind: "group", name: "lab", path: "lab", parent: "q0", depth: 1, max_slots: 8,
  grants: [{ accelerator: "h100", nominal: 4, borrow_limit: null, lend_limit: 2 }],
};
const inner: QuotaNode = { ...top, id: "q2", kind: "group", name: "inner", path: "lab/inner", parent: "q1", depth: 2 };
const red: QuotaNode = { ...top, id: "q3", kind: "team", name: "red", path: "red", parent: "q0", depth: 1 };

describe("the wish that a draft is", () => {
  it("says every limit, and null for what is left empty", () => {
    const change = changeOf({ ...draftOf(lab), limits: { ...draftOf(lab).limits, max_slots: "", max_queued_jobs: 3 } });
    expect(change).toMatchObject({ node: "q1", weight: 1, max_slots: null, max_queued_jobs: 3 });
    expect(change).not.toHaveProperty("parent");
    expect(change).not.toHaveProperty("name");
  });

  it("removes grants that the draft no longer has", () => {
    const change = changeOf({ ...draftOf(lab), grants: [{ ...NEW_GRANT, accelerator: " cpu ", nominal: 2 }] });
    expect(change.grants).toEqual({ h100: null, cpu: { nominal: 2, borrow_limit: null, lend_limit: null } });
  });

  it("renames and moves only what was renamed and moved", () => {
    expect(changeOf({ ...draftOf(inner), name: "deep", parent: "q0" })).toMatchObject({ name: "deep", parent: "q0" });
    expect(changeOf({ ...draftOf(red), parent: "q1" })).not.toHaveProperty("name");
  });

  it("makes a group where it is to be", () => {
    expect(changeOf({ ...newGroup("q1"), name: "vision" })).toMatchObject({ node: "vision", parent: "q1", action: "create" });
  });
});

it("offers no place that is below the node itself, and no team", () => {
  const all = [top, lab, inner, red];
  expect(placesFor(lab, all).map((node) => node.id)).toEqual(["q0"]);
  expect(placesFor(red, all).map((node) => node.id)).toEqual(["q0", "q1", "q2"]);
  expect(placesFor(null, all).map((node) => node.id)).toEqual(["q0", "q1", "q2"]);
});
