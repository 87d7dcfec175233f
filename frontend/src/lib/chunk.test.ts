import { expect, test } from "vitest";

import { chunk, ChunkError, mayReload } from "@/lib/chunk";

test("a chunk that does not load is distinguished from code that fails", async () => {
  const refused = new TypeError("Failed to fetch dynamically imported module");
  const error: unknown = await chunk(() => Promise.reject(refused)).catch((caught: unknown) => caught);
  expect(error).toBeInstanceOf(ChunkError);
  expect((error as ChunkError).cause).toBe(refused);
  expect(await chunk(() => Promise.resolve(3))).toBe(3);
});

test("a page reloads itself once, and again only much later", () => {
  const stored = new Map<string, string>();
  const storage = {
    getItem: (key: string) => stored.get(key) ?? null,
    setItem: (key: string, value: string) => void stored.set(key, value),
  };
  expect(mayReload(storage, 1_000)).toBe(true);
  expect(mayReload(storage, 2_000)).toBe(false);
  expect(mayReload(storage, 60_000)).toBe(true);
});
