import { describe, expect, it } from "vitest";

import type { Metrics, Series } from "@/api/types";
import { align, downsample, firstTime, longest, overTime, refine, smooth, splice, spliceMetrics, overTokens, stepAfter } from "@/lib/series";

const at = (second: number) => new Date(Date.UTC(2026, 0, 1, 0, 0, second)).toISOString();

function series(steps: number[], value: (step: number) => number | null = (step) => step): Series {
  return { steps, values: steps.map(value), times: steps.map(at) };
}

const upTo = (size: number) => Array.from({ length: size }, (_, index) => index);

describe("refine", () => {
  it("replaces a stretch and keeps what is on both sides", () => {
    const base = series([0, 10, 20, 30, 40], () => 1);
    const closer = series([12, 15, 18, 20, 22], () => 2);
    const both = refine(base, closer);
    expect(both.steps).toEqual([0, 10, 12, 15, 18, 20, 22, 30, 40]);
    expect(both.values).toEqual([1, 1, 2, 2, 2, 2, 2, 1, 1]);
    expect(both.times).toHaveLength(9);
  });

  it("leaves a series alone for which nothing closer came", () => {
    expect(refine(series([1, 2]), series([]))).toEqual(series([1, 2]));
  });
});

describe("splice", () => {
  it("adds what is new", () => {
    expect(splice(series([1, 2]), series([3, 4]))).toEqual(series([1, 2, 3, 4]));
  });

  it("lets a resumed run overwrite the steps it did again, and drops those it has not reached yet", () => {
    const before = series([1, 2, 3, 4, 5], () => 1);
    const after = series([3, 4], () => 2);
    expect(splice(before, after).steps).toEqual([1, 2, 3, 4]);
    expect(splice(before, after).values).toEqual([1, 1, 2, 2]);
  });

  it("changes nothing when nothing came", () => {
    const before = series([1, 2]);
    expect(splice(before, series([]))).toBe(before);
  });
});

it("splices each metric by itself and keeps those that sent nothing", () => {
  const head: Metrics = { series: { a: series([1, 2]), b: series([1]) }, last_step: 2, names: ["a", "b"], tokens: null };
  const tail: Metrics = { series: { a: series([3]), c: series([3]) }, last_step: 3, names: ["a", "b", "c"], tokens: null };
  const both = spliceMetrics(head, tail);
  expect(both.series).toEqual({ a: series([1, 2, 3]), b: series([1]), c: series([3]) });
  expect([both.last_step, longest(both)]).toEqual([3, 3]);
  expect(spliceMetrics(both, { series: {}, last_step: -1, names: [], tokens: null }).last_step).toBe(3);
});

describe("downsample", () => {
  it("keeps the ends and a spike of one step", () => {
    const noisy = series(upTo(10_000), (step) => (step === 4321 ? 900 : step === 777 ? -5 : 2 + (step % 7) / 10));
    const small = downsample(noisy, 200);
    expect(small.steps.length).toBeLessThanOrEqual(200);
    expect(small.values).toContain(900);
    expect(small.values).toContain(-5);
    expect([small.steps[0], small.steps.at(-1)]).toEqual([0, 9999]);
    expect([...small.steps].sort((a, b) => a - b)).toEqual(small.steps);
    expect(new Set(small.steps).size).toBe(small.steps.length);
  });

  it("leaves a short series alone", () => {
    const short = series(upTo(50));
    expect(downsample(short, 50)).toBe(short);
  });

  it("shows a stretch without any value as a gap", () => {
    const gap = series(upTo(1000), (step) => (step >= 400 && step < 600 ? null : 1));
    expect(downsample(gap, 100).values).toContain(null);
  });
});

describe("smooth", () => {
  it("starts at the first value instead of pulling it towards zero", () => {
    expect(smooth([8, 8, 8], 0.9)).toEqual([8, 8, 8]);
  });

  it("lies between the old values and the new one, and leaves gaps where they are", () => {
    const [first, gap, last] = smooth([4, null, 2], 0.5);
    expect([first, gap]).toEqual([4, null]);
    expect(last).toBeGreaterThan(2);
    expect(last).toBeLessThan(4);
  });

  it("does nothing at weight 0", () => {
    const values = [1, 2];
    expect(smooth(values, 0)).toBe(values);
  });
});

it("aligns series on one axis: no point is undefined, no number is null", () => {
  const [axis, a, b] = align([series([1, 2, 3], (step) => (step === 2 ? null : step)), series([2, 4])]);
  expect(axis).toEqual([1, 2, 3, 4]);
  expect(a).toEqual([1, null, 3, undefined]);
  expect(b).toEqual([undefined, 2, undefined, 4]);
});

it("puts points at the seconds since the first of all series", () => {
  const [early, late] = [series([5, 6]), series([7])];
  expect(overTime(late, firstTime([late, early])).steps).toEqual([2]);
  expect(firstTime([])).toBe(0);
});

describe("tokens", () => {
  // A batch size ramp over four steps, then 100 tokens a step.
  const counts = { steps: [0, 2, 4, 10], tokens: [0, 50, 200, 800] };

  it("places points by the tokens read up to their step", () => {
    const { steps, values } = overTokens({ steps: [0, 1, 3, 5, 10], values: [9, 8, 7, 6, 5] }, counts);
    expect(steps).toEqual([0, 25, 125, 300, 800]);
    expect(values).toEqual([9, 8, 7, 6, 5]);
  });

  it("finds the step back, within the run", () => {
    expect([0, 125, 300, 800, 9000].map((tokens) => stepAfter(tokens, counts))).toEqual([0, 3, 5, 10, 10]);
  });
});
