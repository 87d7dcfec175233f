import { Button, Group, NumberInput, SegmentedControl, Stack, Switch, Text } from "@mantine/core";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";

import type { AdmissionSettings, QuotaNode } from "@/api/types";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { Panel } from "@/components/panel";
import { ProblemNotice } from "@/components/problem-notice";
import { simulate, simulationKeys } from "@/features/simulator/api/simulations";
import type { GrantRow, Past, Switches } from "@/features/simulator/lib/proposal";
import { changesOf, FIRST_PAST, PARTS, rowsOf, SWITCHES, wishOf } from "@/features/simulator/lib/proposal";

interface ProposalFormProps {
  nodes: QuotaNode[];
  settings: AdmissionSettings;
  onAsked: (id: string) => void;
}

const MADE_UP = [
  { name: "jobs_per_day", label: "Jobs a day", most: 2000 },
  { name: "largest", label: "Slots of the largest job", most: 100_000 },
] as const;

/** Which jobs are tried, and on what: the present tree as a table to edit. */
export function ProposalForm({ nodes, settings, onAsked }: ProposalFormProps) {
  const client = useQueryClient();
  const [before] = useState(() => rowsOf(nodes));
  const [rows, setRows] = useState(before);
  const [past, setPast] = useState<Past>(FIRST_PAST);
  const [switches, setSwitches] = useState<Switches>({
    fair_share: settings.fair_share ?? true,
    backfill: settings.backfill ?? true,
    preempt: settings.preempt ?? true,
  });
  const ask = useMutation({
    mutationFn: () => simulate(wishOf(past, changesOf(before, rows), switches, settings)),
    onSuccess: (made) => onAsked(made.id),
    onSettled: () => client.invalidateQueries({ queryKey: simulationKeys.list }),
  });
  const edit = (edited: GrantRow, part: Partial<GrantRow>) =>
    setRows(rows.map((row) => (row === edited ? { ...row, ...part } : row)));
  const columns: Column<GrantRow>[] = [
    { name: "Node", cell: (row) => row.path },
    { name: "Accelerator", cell: (row) => <span className="mono">{row.accelerator}</span> },
    ...PARTS.map(({ name, label }) => ({
      name: label,
      cell: (row: GrantRow) => (
        <NumberInput
          aria-label={`${label}: ${row.accelerator} of ${row.path}`}
          size="xs"
          min={0}
          allowDecimal={false}
          miw={64}
          maw={110}
          value={row[name]}
          onChange={(value) => edit(row, { [name]: value })}
        />
      ),
    })),
  ];
  return (
    <Panel title="Proposal">
      <Stack>
        <Group align="flex-end" gap="md">
          <SegmentedControl
            aria-label="Jobs to simulate"
            value={past.kind}
            data={[
              { value: "history", label: "What ran" },
              { value: "generate", label: "Made-up jobs" },
            ]}
            onChange={(kind) => setPast({ ...past, kind })}
          />
          <NumberInput
            label={past.kind === "history" ? "In the last days" : "Days"}
            min={1}
            max={366}
            w={140}
            value={past.days}
            onChange={(days) => setPast({ ...past, days })}
          />
          {past.kind === "generate"
            ? MADE_UP.map(({ name, label, most }) => (
                <NumberInput
                  key={name}
                  label={label}
                  min={1}
                  max={most}
                  w={160}
                  value={past[name]}
                  onChange={(value) => setPast({ ...past, [name]: value })}
                />
              ))
            : null}
        </Group>
        <Text size="sm" c="dimmed">
          Replays these jobs on the current tree and on your edited copy. Nothing is applied. Empty: no
          limit; a row of empty fields is no grant.
        </Text>
        <DataTable
          label="Proposed slots"
          rows={rows}
          columns={columns}
          rowKey={(row) => `${row.node} ${row.accelerator}`}
        />
        <Group gap="lg">
          {SWITCHES.map(({ name, label }) => (
            <Switch
              key={name}
              label={label}
              checked={switches[name]}
              onChange={(event) => setSwitches({ ...switches, [name]: event.currentTarget.checked })}
            />
          ))}
        </Group>
        {ask.error ? <ProblemNotice error={ask.error} /> : null}
        <Group justify="flex-end">
          <Button variant="default" onClick={() => setRows(before)}>
            Current tree
          </Button>
          <Button loading={ask.isPending} onClick={() => ask.mutate()}>
            Run
          </Button>
        </Group>
      </Stack>
    </Panel>
  );
}
