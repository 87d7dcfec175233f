import { expect, it } from "vitest";

import { differs, sideBySide } from "@/lib/spec-differences";

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
