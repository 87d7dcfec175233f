import { TextInput } from "@mantine/core";
import { useState } from "react";

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
