import { expect, it } from "vitest";

import { logTicks } from "@/charts/plot-options";

it("marks a logarithmic axis by decades, finer where it shows only a part of one", () => {
  expect(logTicks(0.0008, 3)).toEqual([0.001, 0.01, 0.1, 1]);
  expect(logTicks(0.8, 30)).toEqual([1, 2, 5, 10, 20]);
  expect(logTicks(2.05, 2.9)).toEqual([2.2, 2.4, 2.6, 2.8]);
  expect(logTicks(1e-12, 1e12).length).toBeLessThanOrEqual(7);
});
