import { describe, expect, it } from "vitest";

import { union } from "@/charts/zooms";

describe("union", () => {
  it("covers what every zoomed chart shows", () => {
    expect(union([{ from: 5, to: 20 }, null, { from: 16, to: 28 }])).toEqual({ from: 5, to: 28 });
  });

  it("is nothing when all show everything", () => {
    expect(union([null, null])).toBeNull();
    expect(union([])).toBeNull();
  });
});
