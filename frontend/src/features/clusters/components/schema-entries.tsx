import { Button, Group, NativeSelect, Stack, Text, TextInput } from "@mantine/core";
import type { ReactNode } from "react";
import { useState } from "react";

import type { Json } from "@/api/types";
import type { SchemaFieldProps } from "@/features/clusters/components/schema-fields";
import { SchemaField, SchemaFields } from "@/features/clusters/components/schema-fields";
import type { Field, Kind } from "@/features/clusters/lib/schema-form";
import { isObject } from "@/features/clusters/lib/schema-form";

import classes from "./schema-fields.module.css";

interface EntryProps {
  title: string;
  onRemove: () => void;
  children: ReactNode;
}

function Entry({ title, onRemove, children }: EntryProps) {
  return (
    <Stack gap="sm" className={classes.entry ?? ""} role="group" aria-label={title}>
      <Group justify="space-between">
        <Text size="sm" fw={550}>
          {title}
        </Text>
        <Button size="compact-xs" variant="subtle" color="red" aria-label={`Remove ${title}`} onClick={onRemove}>
          Remove
        </Button>
      </Group>
      {children}
    </Stack>
  );
}

type ListFieldsProps = SchemaFieldProps & { kind: Extract<Kind, { type: "groups" }> };

/** A list of objects, such as the tolerations of a pool. */
export function ListFields({ field, kind, value, path, problems, change }: ListFieldsProps) {
  const items = Array.isArray(value) ? value : [];
  const without = (index: number) => items.filter((_, at) => at !== index);
  return (
    <>
      {items.map((item, index) => (
        <Entry
          key={index}
          title={`${field.label} ${index + 1}`}
          onRemove={() => change(path, items.length === 1 ? undefined : without(index))}
        >
          <SchemaFields fields={kind.fields} value={item} path={[...path, String(index)]} {...{ problems, change }} />
        </Entry>
      ))}
      <Group>
        <Button size="compact-sm" variant="default" onClick={() => change(path, [...items, {}])}>
          Add to {field.label}
        </Button>
      </Group>
    </>
  );
}

type EntryFieldsProps = SchemaFieldProps & { kind: Extract<Kind, { type: "map" }> };

/** Values by names that people choose, such as the settings of each pool. */
export function EntryFields({ field, kind, value, path, problems, change }: EntryFieldsProps) {
  const [name, setName] = useState("");
  const entries = isObject(value) ? value : isObject(field.usual) ? field.usual : {};
  const isDefault = !isObject(value);
  const open = (kind.names ?? []).filter((each) => !(each in entries));
  const chosen = kind.names ? (open.includes(name) ? name : (open[0] ?? "")) : name.trim();
  const empty: Json = ["group", "map"].includes(kind.entry.type) ? {} : "";
  // Default entries are written out when one of them changes: what is written replaces all of them.
  const set = (entry: string, next: Json) =>
    isDefault ? change(path, { ...entries, [entry]: next }) : change([...path, entry], next);
  const remove = (entry: string) => {
    const rest = Object.fromEntries(Object.entries(entries).filter(([each]) => each !== entry));
    const isUsual = Object.keys(rest).length === 0 && !isDefaultFilled(field);
    change(path, isUsual ? undefined : rest);
  };
  return (
    <>
      {Object.entries(entries).map(([entry, inner]) => (
        <Entry key={entry} title={`${field.label}: ${entry}`} onRemove={() => remove(entry)}>
          <SchemaField
            field={{ name: entry, label: entry, help: "", required: false, usual: undefined, kind: kind.entry }}
            value={inner}
            path={[...path, entry]}
            problems={problems}
            change={(at, next) => {
              if (at.length === path.length + 1) set(entry, next ?? (kind.nullable ? null : empty));
              else change(at, next);
            }}
          />
        </Entry>
      ))}
      {kind.names && open.length === 0 ? null : (
        <Group align="flex-end" wrap="nowrap">
          {kind.names ? (
            <NativeSelect
              label={`New entry of ${field.label}`}
              data={open}
              value={chosen}
              onChange={(event) => setName(event.currentTarget.value)}
            />
          ) : (
            <TextInput
              label={`New entry of ${field.label}`}
              placeholder="Name"
              value={name}
              onChange={(event) => setName(event.currentTarget.value)}
            />
          )}
          <Button
            variant="default"
            disabled={chosen === "" || chosen in entries}
            aria-label={`Add to ${field.label}`}
            onClick={() => {
              set(chosen, empty);
              setName("");
            }}
          >
            Add
          </Button>
        </Group>
      )}
    </>
  );
}

function isDefaultFilled(field: Field): boolean {
  return isObject(field.usual) && Object.keys(field.usual).length > 0;
}
