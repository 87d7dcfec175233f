import { parseDocument, stringify } from "yaml";

import type { FieldProblem, Json, JsonObject } from "@/api/types";
import type { ParsedSpec, Remark } from "@/lib/spec-yaml";
import { parseSpec, remarksFor } from "@/lib/spec-yaml";

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

function isObject(value: Json | undefined): value is JsonObject {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}

/** A text to start from: what a kind needs is there to be filled in, what it may have stands in comments. */
export function configTemplate(schema: JsonObject): string {
  const fields = isObject(schema.properties) ? schema.properties : {};
  const needed = new Set(Array.isArray(schema.required) ? schema.required.map(String) : []);
  const lines = Object.entries(fields).map(([name, field]) => {
    const facts = isObject(field) ? field : {};
    const hint = typeof facts.description === "string" ? `  # ${facts.description.replaceAll("\n", " ")}` : "";
    if (needed.has(name)) return `${name}: ${hint}`.trimEnd();
    return `# ${name}: ${JSON.stringify(facts.default ?? null)}${hint}`;
  });
  return lines.length > 0 ? `${lines.join("\n")}\n` : "";
}
