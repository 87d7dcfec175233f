import { describe, expect, it } from "vitest";

import { ago, bytes, count, duration, elapsed, loss, money, NOTHING, priceText, shortId } from "@/lib/format";

describe("count", () => {
  it.each([
    [0, "0"],
    [7.5, "7.5"],
    [950, "950"],
    [999_499, "999k"],
    [999_960, "1M"],
    [1_234_567, "1.23M"],
    [8_030_000_000, "8.03B"],
    [15_000_000_000_000, "15T"],
    [-2500, "-2.5k"],
  ])("writes %d as %s", (value, text) => expect(count(value)).toBe(text));

  it("shows what is not there, or not finite, as a dash", () => {
    expect([count(null), count(undefined), count(NaN), count(Infinity)]).toEqual([NOTHING, NOTHING, NOTHING, NOTHING]);
  });
});

describe("bytes", () => {
  it.each([
    [0, "0 B"],
    [1023, "1023 B"],
    [1024, "1 KiB"],
    [14_200_000, "13.5 MiB"],
    [1024 ** 4, "1 TiB"],
  ])("writes %d as %s", (value, text) => expect(bytes(value)).toBe(text));
});

describe("duration", () => {
  it.each([
    [0.00004, "40 µs"],
    [0.0004, "400 µs"],
    [0, "0 ms"],
    [0.85, "850 ms"],
    [4.24, "4.2 s"],
    [9.97, "10 s"],
    [59.94, "60 s"],
    [59.96, "1m 00s"],
    [185, "3m 05s"],
    [3599.6, "1h 00m"],
    [7800, "2h 10m"],
    [273_600, "3d 4h"],
  ])("writes %d s as %s", (seconds, text) => expect(duration(seconds)).toBe(text));
});

describe("times", () => {
  const now = Date.parse("2026-11-21T12:00:00Z");

  it("counts up to now while there is no end, and never below zero", () => {
    expect(elapsed("2026-11-21T11:59:00Z", null, now)).toBe(60);
    expect(elapsed("2026-11-21T11:59:00Z", "2026-11-21T11:59:30Z", now)).toBe(30);
    expect(elapsed("2026-11-21T12:00:09Z", null, now)).toBe(0);
    expect(elapsed(null, null, now)).toBeNull();
  });

  it.each([
    ["2026-11-21T11:59:58Z", "just now"],
    ["2026-11-21T11:59:18Z", "42s ago"],
    ["2026-11-21T11:00:00Z", "1h ago"],
    ["2026-11-18T12:00:00Z", "3d ago"],
  ])("says when %s was", (time, text) => expect(ago(time, now)).toBe(text));
});

it("keeps four decimals of a loss, and the currency of a price", () => {
  expect(loss(2.3)).toBe("2.3000");
  expect(money(12.5, "EUR")).toBe("12.50 EUR");
  expect(money(0, "")).toBe("0.00");
});

it("shortens an id to its kind and its end, which distinguish ids", () => {
  expect(shortId("job_01M7XRAHCTFC0038PR2QEJ7KE4")).toBe("job_…EJ7KE4");
  expect(shortId("job_1")).toBe("job_1");
});

it("drops no digit of a price", () => {
  expect(priceText("0.125000", "USD")).toBe("0.125 USD");
  expect(priceText("0.012345")).toBe("0.012345");
  expect(priceText(0.0035, "USD")).toBe("0.0035 USD");
  expect(priceText("1234.5")).toBe("1,234.5");
});
