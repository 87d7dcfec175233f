import { expect, it } from "vitest";

import type { Json, JsonObject } from "@/api/types";
import { mergePatch } from "@/lib/merge-patch";

/** RFC 7396, section 2, as its pseudocode has it. */
function apply(target: Json | undefined, patch: Json): Json {
  if (typeof patch !== "object" || patch === null || Array.isArray(patch)) return patch;
  const base = typeof target === "object" && target !== null && !Array.isArray(target) ? target : {};
  const result: JsonObject = { ...base };
  for (const [name, value] of Object.entries(patch)) {
    if (value === null) Reflect.deleteProperty(result, name);
    else result[name] = apply(result[name], value);
  }
  return result;
}

const BEFORE: JsonObject = {
  name: "a",
  labels: { x: "1", y: "2" },
  training: { steps: 10, list: [1, 2], model: { preset: "llama-1m" } },
};

it.each<[string, JsonObject]>([
  ["nothing", BEFORE],
  ["a value deep inside", { ...BEFORE, training: { steps: 20, list: [1, 2], model: { preset: "llama-1m" } } }],
  ["a field removed", { name: "a", labels: { y: "2" }, training: BEFORE.training ?? null }],
  ["a field and a mapping added", { ...BEFORE, project: "p", retry: { max_free: 1 } }],
  ["a list changed", { ...BEFORE, training: { steps: 10, list: [2], model: { preset: "llama-1m" } } }],
  ["a mapping in place of a word", { ...BEFORE, name: { first: "a" } }],
])("turns the one into the other: %s", (_what, after) => {
  const patch = mergePatch(BEFORE, after);
  expect(patch).not.toBeNull();
  expect(apply(BEFORE, patch)).toEqual(after);
});

it("is empty for equal specs", () => expect(mergePatch(BEFORE, structuredClone(BEFORE))).toEqual({}));

it.each<[JsonObject]>([[{ ...BEFORE, name: null }], [{ ...BEFORE, extra: { deep: null } }]])(
  "shows that %j cannot be reached: null means remove",
  (after) => expect(mergePatch(BEFORE, after)).toBeNull(),
);
