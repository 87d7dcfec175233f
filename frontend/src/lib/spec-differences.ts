import type { Json, JsonObject } from "@/api/types";
import { DURATION, SIZE } from "@/lib/units";

/** One field of several specs: its dotted path, and its value in each; undefined where a spec lacks it. */
export interface FieldValues {
  path: string;
  values: (Json | undefined)[];
}

function flatten(value: Json, path: string, into: Map<string, Json>): void {
  if (value !== null && typeof value === "object" && !Array.isArray(value) && Object.keys(value).length > 0) {
    for (const [key, child] of Object.entries(value)) flatten(child, path ? `${path}.${key}` : key, into);
  } else {
    into.set(path, value);
  }
}

/** The fields of a spec by their dotted paths. A list is one value. */
export function flat(spec: JsonObject): Map<string, Json> {
  const fields = new Map<string, Json>();
  flatten(spec, "", fields);
  return fields;
}

/** The fields of several specs side by side, in the order in which they are met. A list is one value. */
export function sideBySide(specs: JsonObject[]): FieldValues[] {
  const all = specs.map(flat);
  const paths = [...new Set(all.flatMap((fields) => [...fields.keys()]))];
  return paths.map((path) => ({ path, values: all.map((fields) => fields.get(path)) }));
}

export function differs({ values }: FieldValues): boolean {
  const [first, ...others] = values.map((value) => JSON.stringify(value));
  return others.some((other) => other !== first);
}

/** The value of a field of a resolved spec as people write it: times and sizes with units. */
export function withUnits(path: string, value: Json): Json {
  const name = path.slice(path.lastIndexOf(".") + 1);
  const unit = name.endsWith("_seconds") ? DURATION : /bytes/.test(name) ? SIZE : null;
  return unit !== null && typeof value === "number" ? unit.text(value) : value;
}
