import type { Json, JsonObject } from "@/api/types";
import type { Unit } from "@/lib/units";
import { DURATION, SIZE } from "@/lib/units";

/** How a value is edited. `unknown`: in the YAML alone. */
export type Kind =
  | { type: "text" }
  | { type: "number"; min: number | undefined; max: number | undefined }
  | { type: "boolean" }
  | { type: "choice"; choices: string[] }
  | { type: "unit"; unit: Unit }
  | { type: "list"; numbers: boolean }
  | { type: "group"; fields: Field[] }
  | { type: "groups"; fields: Field[] }
  | { type: "map"; names: string[] | null; entry: Kind; nullable: boolean }
  | { type: "variants"; tag: string; variants: { name: string; help: string; fields: Field[] }[] }
  | { type: "unknown" };

export interface Field {
  name: string;
  label: string;
  help: string;
  required: boolean;
  usual: Json | undefined;
  kind: Kind;
}

const UNITS: Record<string, Unit> = { duration: DURATION, size: SIZE };
/** Words that are not written in lower case, and units that the value itself names. */
const WORDS: Record<string, string> = {
  cidr: "CIDR", cpus: "CPUs", gid: "GID", gres: "GRES", hcas: "HCAs", qos: "QOS", roce: "RoCE", url: "URL",
  bytes: "", seconds: "",
}; // prettier-ignore

export function isObject(value: Json | undefined): value is JsonObject {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}

/** `memory_bytes_per_process` -> "Memory per process". */
export function labelOf(name: string): string {
  const words = name.split("_").map((word) => WORDS[word] ?? word);
  const label = words.filter((word) => word !== "").join(" ");
  return label.charAt(0).toUpperCase() + label.slice(1);
}

function textOf(value: Json | undefined): string {
  return typeof value === "string" ? value.replace(/\s+/g, " ").trim() : "";
}

function helpOf(schema: JsonObject): string {
  return textOf(schema.description).replaceAll("`", "");
}

function listOf(value: Json | undefined): JsonObject[] {
  return Array.isArray(value) ? value.filter(isObject) : [];
}

function numberOf(...values: (Json | undefined)[]): number | undefined {
  return values.find((value) => typeof value === "number");
}

/** What a reference leads to, with what is beside it. */
function resolve(schema: JsonObject, root: JsonObject): JsonObject {
  const name = typeof schema.$ref === "string" ? schema.$ref.split("/").at(-1) : undefined;
  const definitions = isObject(root.$defs) ? root.$defs : {};
  const found = name === undefined ? undefined : definitions[name];
  return isObject(found) ? { ...resolve(found, root), ...schema, $ref: null } : schema;
}

function kindOf(written: JsonObject, root: JsonObject): Kind {
  const schema = resolve(written, root);
  const branches = listOf(schema.anyOf).filter((branch) => branch.type !== "null");
  const unit = branches.map((branch) => UNITS[textOf(branch["x-unit"])]).find((each) => each !== undefined);
  if (unit) return { type: "unit", unit };
  const [only, ...others] = branches;
  if (only) return others.length === 0 ? kindOf(only, root) : { type: "unknown" };
  if (isObject(schema.discriminator)) {
    const tag = textOf(schema.discriminator.propertyName);
    const variants = listOf(schema.oneOf).map((each) => {
      const variant = resolve(each, root);
      const own = isObject(variant.properties) ? variant.properties[tag] : undefined;
      const fields = fieldsOf(variant, root).filter((field) => field.name !== tag);
      return { name: isObject(own) ? textOf(own.const) : "", help: helpOf(variant), fields };
    });
    return { type: "variants", tag, variants };
  }
  if (Array.isArray(schema.enum)) return { type: "choice", choices: schema.enum.map(String) };
  if (schema.type === "boolean") return { type: "boolean" };
  if (schema.type === "string") return { type: "text" };
  if (schema.type === "integer" || schema.type === "number") {
    const min = numberOf(schema.minimum, schema.exclusiveMinimum);
    return { type: "number", min, max: numberOf(schema.maximum, schema.exclusiveMaximum) };
  }
  if (schema.type === "array" && isObject(schema.items)) {
    const items = kindOf(schema.items, root);
    if (items.type === "group") return { type: "groups", fields: items.fields };
    return items.type === "text" || items.type === "number"
      ? { type: "list", numbers: items.type === "number" }
      : { type: "unknown" };
  }
  if (isObject(schema.properties)) return { type: "group", fields: fieldsOf(schema, root) };
  const patterns = isObject(schema.patternProperties) ? Object.values(schema.patternProperties) : [];
  const value = isObject(schema.additionalProperties) ? schema.additionalProperties : patterns[0];
  if (schema.type === "object" && isObject(value)) {
    const names = isObject(schema.propertyNames) ? resolve(schema.propertyNames, root).enum : undefined;
    const nullable = listOf(value.anyOf).some((branch) => branch.type === "null");
    return { type: "map", names: Array.isArray(names) ? names.map(String) : null, entry: kindOf(value, root), nullable };
  }
  return { type: "unknown" };
}

/** The fields of an object's JSON Schema, those that are required first. */
export function fieldsOf(schema: JsonObject, root: JsonObject = schema): Field[] {
  const properties = isObject(schema.properties) ? schema.properties : {};
  const required = new Set(Array.isArray(schema.required) ? schema.required.map(String) : []);
  const fields = Object.entries(properties).flatMap(([name, property]) => {
    if (!isObject(property)) return [];
    return {
      name,
      label: labelOf(name),
      help: helpOf(resolve(property, root)),
      required: required.has(name),
      usual: property.default,
      kind: kindOf(property, root),
    };
  });
  return [...fields.filter((field) => field.required), ...fields.filter((field) => !field.required)];
}

/** Whether a field has a section of its own. */
export function hasParts({ kind }: Field): boolean {
  return ["group", "groups", "map", "variants", "unknown"].includes(kind.type);
}
