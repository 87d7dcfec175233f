import { describe, expect, it } from "vitest";

import { pixels } from "@/lib/pixels";

describe("pixels", () => {
  it("grows with the screen, in strides, and not without end", () => {
    expect(pixels(390, 2)).toBe(800);
    expect(pixels(1280, 1)).toBe(1400);
    expect(pixels(1290, 1)).toBe(1400);
    expect(pixels(3840, 2)).toBe(2000);
  });
});
