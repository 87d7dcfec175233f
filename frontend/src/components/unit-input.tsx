import { TextInput } from "@mantine/core";
import { useState } from "react";

import type { Json } from "@/api/types";
import type { Unit } from "@/lib/units";

interface UnitInputProps {
  label: string;
  unit: Unit;
  /** In the base unit: seconds or bytes. Null: empty. */
  value: number | null;
  description?: string;
  required?: boolean;
  error?: string | undefined;
  /** Not called while the text cannot be read. */
  onChange: (value: number | null) => void;
  /** Whether the text can be read, when that changes. */
  onValid?: (valid: boolean) => void;
}

/** A duration or a size, written with its unit: `2h`, `40 GiB`. */
export function UnitInput({ label, unit, value, description, required = false, error, onChange, onValid }: UnitInputProps) {
  const [text, setText] = useState(value === null ? "" : unit.text(value));
  const isReadable = (written: string) => (written.trim() === "" ? !required : unit.parse(written) !== null);
  return (
    <TextInput
      label={label}
      value={text}
      description={description}
      error={isReadable(text) ? error : unit.example}
      onChange={(event) => {
        const written = event.currentTarget.value;
        setText(written);
        onValid?.(isReadable(written));
        if (isReadable(written)) onChange(unit.parse(written));
      }}
      onBlur={() => {
        const read = unit.parse(text);
        if (read !== null) setText(unit.text(read));
      }}
    />
  );
}

interface UnitFieldProps {
  label: string;
  unit: Unit;
  /** As the document has it: a number of seconds or bytes, or a text with units. */
  value: Json | undefined;
  placeholder?: string;
  description?: string | undefined;
  required?: boolean;
  disabled?: boolean;
  error?: string | undefined;
  onChange: (value: string | number | undefined) => void;
}

function shownAs(unit: Unit, value: Json | undefined): string {
  if (typeof value === "number") return unit.text(value);
  return typeof value === "string" ? value : "";
}

function writtenAs(text: string): string | number | undefined {
  const trimmed = text.trim();
  if (trimmed === "") return undefined;
  return /^\d+$/.test(trimmed) ? Number(trimmed) : trimmed;
}

/** A duration or a size of a document that takes units: what is typed is what the document says, unreadable or not. */
export function UnitField({ unit, value, error, onChange, ...rest }: UnitFieldProps) {
  const [text, setText] = useState(() => shownAs(unit, value));
  const [last, setLast] = useState(value);
  if (value !== last) {
    // Changed here, or elsewhere: in the YAML beside it.
    setLast(value);
    if (value !== writtenAs(text)) setText(shownAs(unit, value));
  }
  const isReadable = text.trim() === "" || unit.parse(text) !== null;
  return (
    <TextInput
      {...rest}
      value={text}
      error={isReadable ? error : unit.example}
      onChange={(event) => {
        setText(event.currentTarget.value);
        onChange(writtenAs(event.currentTarget.value));
      }}
      onBlur={() => setText(shownAs(unit, writtenAs(text)))}
    />
  );
}
