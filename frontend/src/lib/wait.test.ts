import { expect, it } from "vitest";

import type { Wait } from "@/api/types";
import { expectedStart, holders, place, waitsFor } from "@/lib/wait";

const at = "2026-01-01T00:00:00Z";
const wait: Wait = {
  blocker: null, unblocks: "", position: 2, of: 7, starts_in_seconds: null, p50_seconds: null, p90_seconds: null, at,
  estimated_at: at,
};
const minuteLater = Date.parse(at) + 60_000;

it("counts an estimate down from when it was made", () => {
  const estimated = { ...wait, p50_seconds: 120, p90_seconds: 660 };
  expect(expectedStart(estimated, minuteLater)).toBe("in about 1m 00s, nine of ten within 10m 00s");
  expect(expectedStart(estimated, minuteLater + 3_600_000)).toBe("any moment");
  expect(expectedStart(wait, minuteLater)).toBeNull();
});

it("says the reservation where there is no estimate", () => {
  expect(expectedStart({ ...wait, starts_in_seconds: 90 }, minuteLater)).toBe("within 30 s");
});

it("names the place and the holders", () => {
  expect(place(wait)).toBe("2 of 7");
  expect(place({ ...wait, of: null })).toBe("2");
  const held_by = [{ team: "blue", slots: 8 }, { team: "green", slots: 1 }];
  expect(holders({ ...wait, blocker: { kind: "pool", name: "p", lacking: 1, held_by, own_jobs: [] } })).toBe(
    "blue 8 slots, green 1 slot",
  );
});

it("names the blocker, with the missing slots only where slots are missing", () => {
  const blocker = { kind: "pool", name: "gpu", lacking: 1, held_by: [], own_jobs: [] };
  expect(waitsFor({ ...wait, blocker })).toBe("slots of pool gpu, 1 slot missing");
  expect(waitsFor({ ...wait, blocker: { ...blocker, kind: "quota", name: "red", lacking: 3 } })).toBe(
    "quota of red, 3 slots missing",
  );
  expect(waitsFor({ ...wait, blocker: { ...blocker, kind: "budget", name: "spring", lacking: 3600 } })).toBe(
    "budget spring",
  );
  expect(waitsFor(wait)).toBeNull();
});

it("names no blocker for a job on hold: the blocker is the job itself", () => {
  const blocker = { kind: "hold", name: "job_1", lacking: 0, held_by: [], own_jobs: [] };
  expect(waitsFor({ ...wait, blocker })).toBeNull();
});
