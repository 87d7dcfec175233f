import { Autocomplete, NativeSelect, NumberInput, SimpleGrid, TextInput } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";

import { datasetsQuery } from "@/api/datasets";
import { sessionQuery } from "@/api/session";
import type { FieldProblem } from "@/api/types";
import { Panel } from "@/components/panel";
import { UnitField } from "@/components/unit-input";
import type { SpecState } from "@/features/submit/hooks/use-spec";
import { fieldAt } from "@/lib/spec-yaml";
import type { Unit } from "@/lib/units";
import { DURATION, SIZE } from "@/lib/units";

interface FieldsPanelProps {
  spec: SpecState;
  problems: FieldProblem[];
}

interface NumberField {
  label: string;
  path: string[];
  /** Steps of the arrow keys; a learning rate moves in tenths of its size. */
  step?: number;
  decimals?: boolean;
}

const NUMBERS: NumberField[] = [
  { label: "Steps", path: ["training", "steps"], step: 50 },
  { label: "Processes per node", path: ["resources", "processes_per_node"] },
  { label: "Nodes", path: ["resources", "nodes"] },
  { label: "Learning rate", path: ["training", "optimizer", "learning_rate"], step: 0.0001, decimals: true },
  { label: "Tokens per step", path: ["training", "tokens_per_step"], step: 1024 },
  { label: "Sequence length", path: ["training", "sequence_length"], step: 64 },
  { label: "Checkpoint every (steps)", path: ["checkpoint", "every_steps"], step: 10 },
];

const UNITS: { label: string; path: string[]; unit: Unit; example: string }[] = [
  { label: "Time limit", path: ["time_limit_seconds"], unit: DURATION, example: "1d 12h" },
  { label: "Memory per node", path: ["resources", "memory_bytes_per_node"], unit: SIZE, example: "40 GiB" },
];

const BUILTIN = "builtin:python-stdlib";

/** The fields that are changed most often; everything else is in the YAML beside them. */
export function FieldsPanel({ spec, problems }: FieldsPanelProps) {
  const session = useQuery(sessionQuery());
  const datasets = useQuery(datasetsQuery());
  const teams = session.data?.teams ?? [];
  const disabled = spec.spec === null;

  const errorAt = (path: string[]) => {
    const pointer = `/${path.join("/")}`;
    return problems.find((problem) => problem.pointer === pointer)?.detail;
  };
  const text = (path: string[]) => {
    const value = spec.field(path);
    return typeof value === "string" || typeof value === "number" ? String(value) : "";
  };
  // Defaults live on the server: what the spec leaves out is shown from the resolved one, greyed.
  const fallback = (path: string[]) => {
    const value = fieldAt(spec.defaults, path);
    return typeof value === "string" || typeof value === "number" ? String(value) : "";
  };
  const sources = [...new Set([BUILTIN, ...(datasets.data?.items ?? []).map((one) => one.spec_source)])];

  return (
    <Panel title="Essentials">
      <SimpleGrid cols={{ base: 1, xs: 2 }} spacing="md" verticalSpacing="sm">
        <TextInput
          label="Name"
          value={text(["name"])}
          error={errorAt(["name"])}
          disabled={disabled}
          onChange={(event) => spec.change(["name"], event.currentTarget.value)}
        />
        {teams.length > 1 ? (
          <NativeSelect
            label="Team"
            value={text(["team"])}
            error={errorAt(["team"])}
            disabled={disabled}
            data={[
              ...(text(["team"]) === "" ? [{ value: "", label: "Choose a team" }] : []),
              ...teams.map((team) => team.name),
            ]}
            onChange={(event) => spec.change(["team"], event.currentTarget.value || undefined)}
          />
        ) : null}
        <Autocomplete
          label="Data"
          data={[...new Set(sources)]}
          value={text(["training", "data", "source"])}
          error={errorAt(["training", "data", "source"]) ?? errorAt(["training", "data"])}
          disabled={disabled}
          // All are offered, whatever is in the field: it is a choice first, and free text second.
          filter={({ options }) => options}
          onChange={(value) => spec.change(["training", "data", "source"], value)}
        />
        {NUMBERS.map(({ label, path, step = 1, decimals = false }) => (
          <NumberInput
            key={label}
            label={label}
            value={text(path)}
            placeholder={fallback(path)}
            error={errorAt(path)}
            disabled={disabled}
            min={0}
            step={step}
            allowDecimal={decimals}
            {...(decimals ? { decimalScale: 10 } : {})}
            onChange={(value) => {
              if (value === "") spec.change(path, undefined);
              else if (Number.isFinite(Number(value))) spec.change(path, Number(value));
            }}
          />
        ))}
        {UNITS.map(({ label, path, unit, example }) => {
          const usual = fieldAt(spec.defaults, path);
          return (
            <UnitField
              key={label}
              label={label}
              unit={unit}
              value={spec.field(path)}
              placeholder={typeof usual === "number" ? unit.text(usual) : `such as ${example}`}
              error={errorAt(path)}
              disabled={disabled}
              onChange={(value) => spec.change(path, value)}
            />
          );
        })}
      </SimpleGrid>
    </Panel>
  );
}
