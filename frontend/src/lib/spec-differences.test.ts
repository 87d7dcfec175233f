import { describe, expect, it } from "vitest";

import { differs, sideBySide, withUnits } from "@/lib/spec-differences";

it("sets the fields of specs side by side and knows which differ", () => {
  const rows = sideBySide([
    { name: "a", training: { steps: 10, rate: 0.1 }, labels: {}, mix: [1, 2] },
    { name: "b", training: { steps: 10, rate: 0.2, ramp: null }, labels: {}, mix: [1, 2] },
  ]);
  expect(rows.map((row) => row.path)).toEqual([
    "name",
    "training.steps",
    "training.rate",
    "labels",
    "mix",
    "training.ramp",
  ]);
  expect(rows.filter(differs)).toEqual([
    { path: "name", values: ["a", "b"] },
    { path: "training.rate", values: [0.1, 0.2] },
    { path: "training.ramp", values: [undefined, null] },
  ]);
});

it("finds no difference in one spec", () => {
  expect(sideBySide([{ a: 1, b: { c: "x" } }]).some(differs)).toBe(false);
});

describe("a value of a spec", () => {
  it("has its unit where it is a time or a size", () => {
    expect(withUnits("time_limit_seconds", 129_600)).toBe("1d 12h");
    expect(withUnits("resources.memory_bytes_per_node", 40 * 2 ** 30)).toBe("40 GiB");
    expect(withUnits("training.steps", 7)).toBe(7);
    expect(withUnits("wait_limit_seconds", null)).toBeNull();
  });
});
