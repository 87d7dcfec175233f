import { describe, expect, it } from "vitest";

import { decodeBase64Url, encodeBase64Url } from "@/lib/passkeys";

describe("base64url", () => {
  it("writes what is binary without padding and without + and /", () => {
    expect(encodeBase64Url(Uint8Array.from([251, 255, 254]).buffer)).toBe("-__-");
    expect(encodeBase64Url(Uint8Array.from([1]).buffer)).toBe("AQ");
  });

  it("reads back every byte", () => {
    const all = Uint8Array.from({ length: 256 }, (_, index) => index);
    expect(new Uint8Array(decodeBase64Url(encodeBase64Url(all.buffer)))).toEqual(all);
  });
});
