import type { Json, JsonObject } from "@/api/types";

function isObject(value: Json | undefined): value is JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function same(a: Json | undefined, b: Json | undefined): boolean {
  if (isObject(a) && isObject(b)) {
    const names = new Set([...Object.keys(a), ...Object.keys(b)]);
    return [...names].every((name) => same(a[name], b[name]));
  }
  if (Array.isArray(a) && Array.isArray(b)) {
    return a.length === b.length && a.every((value, index) => same(value, b[index]));
  }
  return a === b;
}

function holdsNull(value: Json): boolean {
  if (isObject(value)) return Object.values(value).some(holdsNull);
  return value === null;
}

/**
 * The JSON merge patch (RFC 7396) that turns `before` into `after`; null when there is none: in a merge patch null
 * means "remove", so a field cannot be set to null by one.
 */
export function mergePatch(before: JsonObject, after: JsonObject): JsonObject | null {
  const patch: JsonObject = {};
  for (const name of new Set([...Object.keys(before), ...Object.keys(after)])) {
    const [from, to] = [before[name], after[name]];
    if (same(from, to)) continue;
    if (to === undefined) {
      patch[name] = null;
    } else if (isObject(from) && isObject(to)) {
      const inner = mergePatch(from, to);
      if (inner === null) return null;
      patch[name] = inner;
    } else {
      if (holdsNull(to)) return null;
      patch[name] = to;
    }
  }
  return patch;
}
