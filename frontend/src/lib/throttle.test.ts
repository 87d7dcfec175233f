import { afterEach, beforeEach, expect, test, vi } from "vitest";

import { throttled } from "@/lib/throttle";

beforeEach(() => {
  vi.useFakeTimers();
});
afterEach(() => {
  vi.useRealTimers();
});

test("a burst is two: the first immediately, the last when the time is over", () => {
  const act = vi.fn();
  const ask = throttled(act, 1000);
  for (let n = 0; n < 10; n += 1) ask();
  expect(act).toHaveBeenCalledTimes(1);
  vi.advanceTimersByTime(999);
  expect(act).toHaveBeenCalledTimes(1);
  vi.advanceTimersByTime(1);
  expect(act).toHaveBeenCalledTimes(2);
  vi.advanceTimersByTime(5000);
  expect(act).toHaveBeenCalledTimes(2);
  ask();
  expect(act).toHaveBeenCalledTimes(3);
});
