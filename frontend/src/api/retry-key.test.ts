import { expect, test } from "vitest";

import { forgetRetryKey, identityOf, retryKey } from "@/api/retry-key";

test("a call without an answer is repeated with its key, and an answered one is a new wish", () => {
  const call = identityOf("/api/v1/tokens", { name: "a" }, undefined);
  const key = retryKey(call);
  expect(key).toMatch(/^[0-9a-f]{32}$/);
  expect(retryKey(call)).toBe(key);
  forgetRetryKey(call, 503);
  expect(retryKey(call)).toBe(key);
  forgetRetryKey(call, 201);
  expect(retryKey(call)).not.toBe(key);
});

test("another address, body or file is another call", () => {
  const file = new Blob(["words"]);
  const calls = [
    identityOf("/api/v1/tokens", { name: "a" }, undefined),
    identityOf("/api/v1/tokens", { name: "b" }, undefined),
    identityOf("/api/v1/tokens", undefined, undefined),
    identityOf("/api/v1/projects", { name: "a" }, undefined),
    identityOf("/api/v1/datasets?name=a", undefined, file),
    identityOf("/api/v1/datasets?name=a", undefined, new Blob(["words"])),
  ];
  expect(new Set(calls).size).toBe(calls.length);
  expect(identityOf("/api/v1/datasets?name=a", undefined, file)).toBe(calls[4]);
});
