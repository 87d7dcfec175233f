import { isMap, isScalar, isSeq, LineCounter, parseDocument, stringify } from "yaml";

import type { FieldProblem, Json, JsonObject } from "@/api/types";

/** A remark about a place of the text, by characters from its start. */
export interface Remark {
  from: number;
  to: number;
  message: string;
  severity: "error" | "warning";
}

export interface ParsedSpec {
  /** Null when the text is no YAML mapping; `remarks` then says why. */
  spec: JsonObject | null;
  remarks: Remark[];
}

/** YAML 1.2 as the server reads it: `no` and `on` are words, duplicate keys an error. */
export function parseSpec(text: string): ParsedSpec {
  const document = parseDocument(text, { lineCounter: new LineCounter(), prettyErrors: false });
  const remarks: Remark[] = document.errors.map((error) => ({
    from: error.pos[0],
    to: Math.max(error.pos[1], error.pos[0] + 1),
    message: error.message,
    severity: "error",
  }));
  if (remarks.length > 0) return { spec: null, remarks };
  if (!isMap(document.contents)) {
    const message = "The spec must be a mapping of fields, such as `name: my-job`.";
    return { spec: null, remarks: [{ from: 0, to: Math.max(1, text.length), message, severity: "error" }] };
  }
  return { spec: document.toJS() as JsonObject, remarks };
}

export function pointerPath(pointer: string): string[] {
  if (pointer === "" || pointer === "/") return [];
  return pointer
    .replace(/^\//, "")
    .split("/")
    .map((piece) => piece.replaceAll("~1", "/").replaceAll("~0", "~"));
}

/** Where a JSON pointer points in the text; the deepest part that exists when the field itself is missing. */
export function locate(text: string, pointer: string): { from: number; to: number } {
  const document = parseDocument(text);
  let node: unknown = document.contents;
  let range: [number, number] = [0, Math.max(1, text.indexOf("\n"))];
  for (const piece of pointerPath(pointer)) {
    if (isMap(node)) {
      const pair = node.items.find((item) => isScalar(item.key) && String(item.key.value) === piece);
      if (!pair) break;
      if (isScalar(pair.key) && pair.key.range) range = [pair.key.range[0], pair.key.range[1]];
      node = pair.value;
      if (isScalar(node) && node.range) range = [range[0], node.range[1]];
    } else if (isSeq(node)) {
      node = node.items[Number(piece)];
      if (isScalar(node) && node.range) range = [node.range[0], node.range[1]];
    } else break;
  }
  return { from: range[0], to: Math.max(range[1], range[0] + 1) };
}

export function remarksFor(text: string, problems: FieldProblem[], severity: Remark["severity"]): Remark[] {
  return problems.map((problem) => {
    const field = pointerPath(problem.pointer).join(".");
    const message = field === "" ? problem.detail : `${field}: ${problem.detail}`;
    return { ...locate(text, problem.pointer), message, severity };
  });
}

/** The text with one field changed and all else, comments and spacing included, as the author wrote it. */
export function setField(text: string, path: string[], value: Json | undefined): string {
  const document = parseDocument(text);
  if (document.errors.length > 0) return text;
  const node = document.getIn(path, true);
  if (value !== undefined && isScalar(node) && node.range) {
    const [from, to] = node.range;
    const patched = text.slice(0, from) + stringify(value, { lineWidth: 0 }).trimEnd() + text.slice(to);
    // Not so where the place has rules of its own (a comma within braces, a field left empty): then it is printed again.
    if (fieldAt(parseSpec(patched).spec, path) === value) return patched;
  }
  if (document.contents === null) document.contents = document.createNode({}) as never;
  if (value === undefined) document.deleteIn(path);
  else document.setIn(path, value);
  return document.toString({ lineWidth: 0, flowCollectionPadding: false });
}

export function fieldAt(spec: JsonObject | null, path: string[]): Json | undefined {
  let value: Json | undefined = spec ?? undefined;
  for (const piece of path) {
    if (value === null || typeof value !== "object" || Array.isArray(value)) return undefined;
    value = value[piece];
  }
  return value;
}

/** The order in which people write a spec: the server's database stores the fields but not their order. */
const ORDER = [
  ["version", "name", "team", "project", "labels", "priority"],
  ["resources", "cluster", "accelerator", "nodes", "processes_per_node", "time_limit_seconds"],
  ["retry", "max_charged", "max_free", "window_seconds", "restarts_in_place", "checkpoint", "keep_last"],
  ["telemetry", "mlflow", "tracking_uri", "experiment", "run_name"],
  ["training", "model", "preset", "base", "shape", "data", "source", "format", "text_field", "validation_fraction"],
  ["tokenizer", "kind", "vocab_size", "steps", "tokens_per_step", "sequence_length"],
  ["lora", "rank", "alpha", "targets", "quantization", "export", "optimizer", "learning_rate", "beta1", "beta2", "epsilon", "weight_decay", "gradient_clip"],
  ["schedule", "warmup_steps", "decay_fraction", "final_fraction", "precision", "parallelism"],
  ["activation_checkpointing", "evaluation", "every_steps", "sequences", "prompts", "sample_tokens", "compile", "seed"],
].flat();
const PLACE = new Map(ORDER.map((name, place) => [name, place]));

function inOrder(value: Json): Json {
  if (Array.isArray(value)) return value.map(inOrder);
  if (value === null || typeof value !== "object") return value;
  const place = (name: string) => PLACE.get(name) ?? ORDER.length;
  const entries = Object.entries(value).sort(([a], [b]) => place(a) - place(b));
  return Object.fromEntries(entries.map(([name, inner]) => [name, inOrder(inner)]));
}

export function toYaml(spec: JsonObject): string {
  return stringify(inOrder(spec), { lineWidth: 0 });
}
