import { NativeSelect, NumberInput, Stack, Switch, TagsInput, Text, TextInput } from "@mantine/core";
import type { ReactNode } from "react";
import { useState } from "react";

import type { FieldProblem, Json } from "@/api/types";
import { UnitField } from "@/components/unit-input";
import { EntryFields, ListFields } from "@/features/clusters/components/schema-entries";
import { hasProblem, problemAt } from "@/features/clusters/lib/config-yaml";
import type { Field, Kind } from "@/features/clusters/lib/schema-form";
import { hasParts, isObject } from "@/features/clusters/lib/schema-form";

import classes from "./schema-fields.module.css";

/** The document that the fields edit, and what the server says of it. */
export interface Editing {
  problems: FieldProblem[];
  change: (path: string[], value: Json | undefined) => void;
}

interface SchemaFieldsProps extends Editing {
  fields: Field[];
  value: Json | undefined;
  path: string[];
}

/** Fields of a JSON Schema: those that are required, then the optional ones in sections that are folded. */
export function SchemaFields({ fields, value, path, problems, change }: SchemaFieldsProps) {
  const at = (field: Field) => ({
    field,
    value: isObject(value) ? value[field.name] : undefined,
    path: [...path, field.name],
    problems,
    change,
  });
  const shown = (field: Field) => <SchemaField key={field.name} {...at(field)} />;
  const isTop = path.length === 0;
  const plain = fields.filter((field) => !field.required && !hasParts(field));
  const sections = fields.filter((field) => !field.required && hasParts(field));
  return (
    <Stack gap="sm">
      {fields.filter((field) => field.required).map(shown)}
      {isTop ? null : plain.map(shown)}
      {isTop && plain.length > 0 ? (
        <Fold title="More settings" names={plain.map((field) => field.name)} value={value} path={path} problems={problems}>
          <Stack gap="sm">{plain.map(shown)}</Stack>
        </Fold>
      ) : null}
      {sections.map((field) => (
        <Fold key={field.name} title={field.label} names={[field.name]} value={value} path={path} problems={problems}>
          {shown(field)}
        </Fold>
      ))}
    </Stack>
  );
}

interface FoldProps {
  title: string;
  /** Of the fields within. */
  names: string[];
  value: Json | undefined;
  path: string[];
  problems: FieldProblem[];
  children: ReactNode;
}

/** A section that is closed until it is opened, or the server objects to something in it. */
function Fold({ title, names, value, path, problems, children }: FoldProps) {
  const [opened, setOpened] = useState(false);
  const set = names.filter((name) => isObject(value) && value[name] !== undefined).length;
  const objected = names.some((name) => hasProblem(problems, [...path, name]));
  return (
    <details
      className={classes.fold}
      open={opened || objected}
      onToggle={(event) => setOpened(event.currentTarget.open)}
    >
      <summary>
        {title}
        {set > 0 ? <span className={classes.note}>{names.length > 1 ? `${set} set` : "set"}</span> : null}
      </summary>
      <div className={classes.parts}>{children}</div>
    </details>
  );
}

export interface SchemaFieldProps extends Editing {
  field: Field;
  value: Json | undefined;
  path: string[];
}

function textOf(value: Json | undefined): string {
  return typeof value === "string" || typeof value === "number" ? String(value) : "";
}

function usualText({ usual, kind }: Field): string {
  if (kind.type === "unit" && typeof usual === "number") return kind.unit.text(usual);
  return Array.isArray(usual) ? usual.map(textOf).join(", ") : textOf(usual);
}

/** One field, by the kind of its value. What is cleared is left out of the document. */
export function SchemaField({ field, value, path, problems, change }: SchemaFieldProps) {
  const { kind, usual } = field;
  const usually = usualText(field);
  const error = problemAt(problems, path);
  const about = { label: field.label, description: field.help || undefined, required: field.required, error };
  const set = (next: Json | undefined) => change(path, next);
  switch (kind.type) {
    case "text":
      return (
        <TextInput
          {...about}
          value={textOf(value)}
          placeholder={usually}
          onChange={(event) => set(event.currentTarget.value === "" ? undefined : event.currentTarget.value)}
        />
      );
    case "number":
      return (
        <NumberInput
          {...about}
          value={textOf(value)}
          placeholder={usually}
          {...(kind.min === undefined ? {} : { min: kind.min })}
          {...(kind.max === undefined ? {} : { max: kind.max })}
          clampBehavior="none"
          onChange={(next) => set(next === "" ? undefined : Number(next))}
        />
      );
    case "unit":
      return <UnitField {...about} unit={kind.unit} value={value} placeholder={usually} onChange={set} />;
    case "boolean": {
      const checked = typeof value === "boolean" ? value : usual === true;
      return (
        <Switch
          label={field.label}
          description={field.help}
          error={error}
          checked={checked}
          onChange={(event) => set(event.currentTarget.checked === usual ? undefined : event.currentTarget.checked)}
        />
      );
    }
    case "choice":
      return (
        <NativeSelect
          {...about}
          data={[
            { value: "", label: usually ? `Default (${usually})` : "Default" },
            ...kind.choices.filter((choice) => choice !== ""),
          ]}
          value={textOf(value)}
          onChange={(event) => set(event.currentTarget.value || undefined)}
        />
      );
    case "list":
      return (
        <TagsInput
          {...about}
          value={Array.isArray(value) ? value.map(textOf) : []}
          placeholder={usually || "Press Enter after each value"}
          splitChars={[]}
          onChange={(next) => set(next.length === 0 ? undefined : next.map((each) => itemOf(each, kind.numbers)))}
        />
      );
    default:
      return <Parts field={field} kind={kind} value={value} path={path} problems={problems} change={change} />;
  }
}

function itemOf(text: string, isNumber: boolean): Json {
  return isNumber && Number.isFinite(Number(text)) ? Number(text) : text;
}

type PartsProps = SchemaFieldProps & { kind: Kind };

/** What has fields of its own. */
function Parts({ field, kind, value, path, problems, change }: PartsProps) {
  const error = problemAt(problems, path);
  // A group without any field set is left out of the document.
  const changeWithin = (inner: string[], next: Json | undefined) => {
    const isLast = inner.length === path.length + 1 && isObject(value) && Object.keys(value).length === 1;
    change(next === undefined && isLast ? path : inner, next);
  };
  const within = { value, path, problems, change: changeWithin };
  return (
    <Stack gap="sm" role="group" aria-label={field.label}>
      {field.help ? (
        <Text size="xs" c="dimmed">
          {field.help}
        </Text>
      ) : null}
      {error ? (
        <Text size="xs" c="var(--tone-bad)">
          {error}
        </Text>
      ) : null}
      {kind.type === "group" ? <SchemaFields fields={kind.fields} {...within} /> : null}
      {kind.type === "groups" ? <ListFields field={field} kind={kind} {...within} /> : null}
      {kind.type === "map" ? <EntryFields field={field} kind={kind} {...within} /> : null}
      {kind.type === "variants" ? <Variants field={field} kind={kind} {...within} /> : null}
      {kind.type === "unknown" ? <Text size="sm">Set it in the YAML.</Text> : null}
    </Stack>
  );
}

type VariantsProps = SchemaFieldProps & { kind: Extract<Kind, { type: "variants" }> };

/** One of several sets of fields, by a field that names it. */
function Variants({ field, kind, value, path, problems, change }: VariantsProps) {
  const name = isObject(value) ? value[kind.tag] : isObject(field.usual) ? field.usual[kind.tag] : undefined;
  const chosen = kind.variants.find((variant) => variant.name === name);
  return (
    <>
      <NativeSelect
        label={`${field.label}: kind`}
        description={chosen?.help}
        error={problemAt(problems, [...path, kind.tag])}
        data={[...(chosen ? [] : [{ value: "", label: "Choose" }]), ...kind.variants.map((variant) => variant.name)]}
        value={chosen?.name ?? ""}
        onChange={(event) => change(path, { [kind.tag]: event.currentTarget.value })}
      />
      {chosen ? <SchemaFields fields={chosen.fields} {...{ value, path, problems, change }} /> : null}
    </>
  );
}
