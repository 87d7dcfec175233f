import { describe, expect, it } from "vitest";

import { durationText, parseDuration, parseSize, sizeText } from "@/lib/units";

describe("durations", () => {
  it.each([["2h", 7200], ["90m", 5400], ["1d 12h", 129_600], ["1D12H", 129_600], [" 1.5 h ", 5400], ["3600", 3600]])(
    "reads %s",
    (text, seconds) => expect(parseDuration(text)).toBe(seconds),
  );

  it.each(["", "h", "2 weeks", "2h soon", "-2h", "1,5h"])("refuses %j", (text) => expect(parseDuration(text)).toBeNull());

  it("writes what it reads", () => {
    for (const seconds of [0, 59, 90, 7200, 129_600, 86_399]) expect(parseDuration(durationText(seconds))).toBe(seconds);
    expect(durationText(129_600)).toBe("1d 12h");
  });
});

describe("sizes", () => {
  it.each([["40 GiB", 40 * 2 ** 30], ["40gib", 40 * 2 ** 30], ["500 MB", 5e8], ["1.5 KiB", 1536], ["7", 7]])(
    "reads %s",
    (text, bytes) => expect(parseSize(text)).toBe(bytes),
  );

  it.each(["", "GiB", "40 Gibi", "-1", "1 2 GB"])("refuses %j", (text) => expect(parseSize(text)).toBeNull());

  it("writes what it reads", () => {
    for (const bytes of [0, 1000, 1536, 40 * 2 ** 30, 2 ** 40 + 1]) expect(parseSize(sizeText(bytes))).toBe(bytes);
    expect(sizeText(40 * 2 ** 30)).toBe("40 GiB");
  });
});
