import type { Metrics, Series, TokenCounts } from "@/api/types";

const EMPTY: Series = { steps: [], values: [], times: [] };

/** The first index whose step is not below `step`; steps rise. */
function lowerBound(steps: number[], step: number): number {
  let low = 0;
  let high = steps.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((steps[middle] ?? 0) < step) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** `tail` continues `head`. Where they overlap `tail` wins: a resumed run repeats its last steps. */
export function splice(head: Series, tail: Series): Series {
  const first = tail.steps[0];
  if (first === undefined) return head;
  const keep = lowerBound(head.steps, first);
  return {
    steps: head.steps.slice(0, keep).concat(tail.steps),
    values: head.values.slice(0, keep).concat(tail.values),
    times: head.times.slice(0, keep).concat(tail.times),
  };
}

export function spliceMetrics(head: Metrics, tail: Metrics): Metrics {
  const series: Record<string, Series> = { ...head.series };
  for (const [name, part] of Object.entries(tail.series)) {
    series[name] = splice(series[name] ?? EMPTY, part);
  }
  return { ...tail, series, last_step: Math.max(tail.last_step, head.last_step) };
}

/** `base` with everything from the first to the last step of `part` replaced by it: a stretch seen more closely. */
export function refine(base: Series, part: Series): Series {
  const [first, last] = [part.steps[0], part.steps.at(-1)];
  if (first === undefined || last === undefined) return base;
  const after = lowerBound(base.steps, last + 1);
  const rest = {
    steps: base.steps.slice(after),
    values: base.values.slice(after),
    times: base.times.slice(after),
  };
  return splice(splice(base, part), rest);
}

export function longest(metrics: Metrics): number {
  return Math.max(0, ...Object.values(metrics.series).map((one) => one.steps.length));
}

/**
 * At most `limit` points that keep every bucket's lowest and highest value, and the ends: a spike of the loss
 * must not vanish because the screen is narrow. Gaps (null) are kept only where a bucket has nothing else.
 */
export function downsample(series: Series, limit: number): Series {
  const size = series.steps.length;
  if (size <= limit || limit < 4) return series;
  const buckets = Math.floor((limit - 2) / 2);
  const chosen = [0];
  const width = (size - 2) / buckets;
  for (let bucket = 0; bucket < buckets; bucket += 1) {
    const from = 1 + Math.floor(bucket * width);
    const to = Math.max(from + 1, 1 + Math.floor((bucket + 1) * width));
    chosen.push(...extremes(series.values, from, Math.min(to, size - 1)));
  }
  chosen.push(size - 1);
  const pick = <T>(from: T[]): T[] => chosen.map((index) => from[index] as T);
  return { steps: pick(series.steps), values: pick(series.values), times: pick(series.times) };
}

function extremes(values: (number | null)[], from: number, to: number): number[] {
  let low = -1;
  let high = -1;
  for (let index = from; index < to; index += 1) {
    const value = values[index];
    if (value == null) continue;
    if (low < 0 || value < (values[low] as number)) low = index;
    if (high < 0 || value > (values[high] as number)) high = index;
  }
  if (low < 0) return from < to ? [from] : [];
  return low === high ? [low] : [Math.min(low, high), Math.max(low, high)];
}

/** Exponential moving average without the bias of its start; `weight` 0 leaves the values as they are. */
export function smooth(values: (number | null)[], weight: number): (number | null)[] {
  if (weight <= 0) return values;
  let average = 0;
  let mass = 0;
  return values.map((value) => {
    if (value === null) return null;
    average = average * weight + value * (1 - weight);
    mass = mass * weight + (1 - weight);
    return average / mass;
  });
}

/** Undefined: this series has no point at that step (drawn through). Null: it has, and the value is no number (a gap). */
export type Column = (number | null | undefined)[];

/** Several series on one rising axis: what uPlot draws. */
export function align(all: Pick<Series, "steps" | "values">[]): [number[], ...Column[]] {
  const axis = [...new Set(all.flatMap((one) => one.steps))].sort((a, b) => a - b);
  const place = new Map(axis.map((step, index) => [step, index]));
  const columns = all.map((one) => {
    const column: Column = new Array<undefined>(axis.length).fill(undefined);
    one.steps.forEach((step, index) => {
      column[place.get(step) as number] = one.values[index] ?? null;
    });
    return column;
  });
  return [axis, ...columns];
}

/** The same points over the seconds since `origin` (milliseconds) instead of over steps. */
export function overTime(series: Series, origin: number): Series {
  return { ...series, steps: series.times.map((time) => (Date.parse(time) - origin) / 1000) };
}

export function firstTime(all: Series[]): number {
  const starts = all.flatMap((one) => (one.times[0] === undefined ? [] : [Date.parse(one.times[0])]));
  return starts.length > 0 ? Math.min(...starts) : 0;
}

/** The value of the line through the points (`from`, `to`), both rising, at `at`; beyond its ends the end's. */
function interpolate(from: number[], to: number[], at: number): number {
  const after = lowerBound(from, at);
  const [left, right] = [Math.max(0, after - 1), Math.min(after, from.length - 1)];
  const [low, high] = [from[left] ?? 0, from[right] ?? 0];
  const share = high > low ? Math.min(1, Math.max(0, (at - low) / (high - low))) : 0;
  return (to[left] ?? 0) + share * ((to[right] ?? 0) - (to[left] ?? 0));
}

/** The same points over the tokens read by then. */
export function overTokens<T extends { steps: number[] }>(series: T, counts: TokenCounts): T {
  return { ...series, steps: series.steps.map((step) => interpolate(counts.steps, counts.tokens, step)) };
}

/** The step after which so many tokens had been read. */
export function stepAfter(tokens: number, counts: TokenCounts): number {
  return interpolate(counts.tokens, counts.steps, tokens);
}
