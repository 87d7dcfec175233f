import { describe, expect, it } from "vitest";

import type { Reconciler } from "@/api/types";
import { condition } from "@/features/admin/lib/condition";

const NOW = Date.parse("2026-01-01T00:01:00Z");
const healthy: Reconciler = {
  name: "athanor.admit",
  invariant: "A job that may start is admitted.",
  every_seconds: 2,
  rows_due: 0,
  oldest_due_seconds: null,
  ran_at: "2026-01-01T00:00:59Z",
  took_seconds: 0.01,
  failed_at: null,
  error: "",
  late: false,
  rows_failing: 0,
  rows_given_up: 0,
};

describe("the condition of a reconciler", () => {
  it("is good while it runs", () => {
    expect(condition(healthy, NOW).text).toBe("Runs");
  });
  it("distinguishes never from late", () => {
    expect(condition({ ...healthy, ran_at: null, late: true }, NOW).text).toBe("Never ran");
    expect(condition({ ...healthy, ran_at: null }, NOW).text).toBe("Not yet due");
    expect(condition({ ...healthy, late: true }, NOW).text).toBe("Late");
  });
  it("counts a failure until a run has succeeded since", () => {
    const before = { ...healthy, failed_at: "2026-01-01T00:00:58Z", error: "OperationalError" };
    expect(condition(before, NOW).text).toBe("Runs");
    expect(condition({ ...before, failed_at: "2026-01-01T00:01:00Z" }, NOW).text).toBe("Failing");
  });
});
