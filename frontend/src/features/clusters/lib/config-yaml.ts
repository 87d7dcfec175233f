import { parseDocument, stringify } from "yaml";

import type { FieldProblem, Json, JsonObject } from "@/api/types";
import { isObject } from "@/features/clusters/lib/schema-form";
import type { ParsedSpec, Remark } from "@/lib/spec-yaml";
import { parseSpec, remarksFor, setField } from "@/lib/spec-yaml";

const BELOW = "/config";

/** A configuration as it is written; nothing but remarks is an empty one. */
export function parseConfig(text: string): ParsedSpec {
  const document = parseDocument(text);
  if (document.errors.length === 0 && document.contents === null) return { spec: {}, remarks: [] };
  return parseSpec(text);
}

export function configText(config: JsonObject): string {
  return Object.keys(config).length === 0 ? "" : stringify(config, { lineWidth: 0 });
}

/** What the server says of `/config/...`, at its place in the text of the configuration. */
export function configRemarks(text: string, problems: FieldProblem[]): Remark[] {
  const own = problems
    .filter((problem) => problem.pointer === BELOW || problem.pointer.startsWith(`${BELOW}/`))
    .map((problem) => ({ ...problem, pointer: problem.pointer.slice(BELOW.length) }));
  return remarksFor(text, own, "error");
}

/** The text with one field changed, by its path in the configuration; what is missing on the way to it is made. */
export function setConfigField(text: string, path: string[], value: Json | undefined): string {
  let at: Json | undefined = parseConfig(text).spec ?? undefined;
  if (at === undefined) return text;
  let depth = 0;
  for (; depth < path.length - 1; depth += 1) {
    const piece = path[depth] ?? "";
    const inner: Json | undefined = Array.isArray(at) ? at[Number(piece)] : isObject(at) ? at[piece] : undefined;
    if (!isObject(inner) && !Array.isArray(inner)) break;
    at = inner;
  }
  const missing = path.slice(depth + 1);
  if (value === undefined && missing.length > 0) return text;
  const made = missing.reduceRight<Json | undefined>((inner, piece) => ({ [piece]: inner ?? null }), value);
  const changed = setField(text, path.slice(0, depth + 1), made);
  return changed.trim() === "{}" ? "" : changed;
}

function pointerOf(path: string[]): string {
  return [BELOW, ...path.map((piece) => piece.replaceAll("~", "~0").replaceAll("/", "~1"))].join("/");
}

/** What the server says of a field, by its path in the configuration. */
export function problemAt(problems: FieldProblem[], path: string[]): string | undefined {
  const pointer = pointerOf(path);
  return problems.find((problem) => problem.pointer === pointer)?.detail;
}

/** Whether the server says something of a field or of what is in it. */
export function hasProblem(problems: FieldProblem[], path: string[]): boolean {
  const pointer = pointerOf(path);
  return problems.some((problem) => `${problem.pointer}/`.startsWith(`${pointer}/`));
}
