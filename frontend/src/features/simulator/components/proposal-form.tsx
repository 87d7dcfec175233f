import { Button, Group, NumberInput, SegmentedControl, Stack, Switch, Text } from "@mantine/core";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";

import type { AdmissionSettings, QuotaNode } from "@/api/types";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { Panel } from "@/components/panel";
import { ProblemNotice } from "@/components/problem-notice";
import { simulate, simulationKeys } from "@/features/simulator/api/simulations";
import type { GrantRow, Switches, Workload } from "@/features/simulator/lib/proposal";
import { changesOf, INITIAL_WORKLOAD, PARTS, rowsOf, SWITCHES, toRequest } from "@/features/simulator/lib/proposal";

interface ProposalFormProps {
  nodes: QuotaNode[];
  settings: AdmissionSettings;
  onCreated: (simulationId: string) => void;
}

const GENERATOR_FIELDS = [
  { name: "jobs_per_day", label: "Jobs a day", most: 2000 },
  { name: "largest", label: "Slots of the largest job", most: 100_000 },
] as const;

/** Choose past or generated jobs, and edit a copy of the current quota tree to replay them on. */
export function ProposalForm({ nodes, settings, onCreated }: ProposalFormProps) {
  const client = useQueryClient();
  const [before] = useState(() => rowsOf(nodes));
  const [rows, setRows] = useState(before);
  const [workload, setWorkload] = useState<Workload>(INITIAL_WORKLOAD);
  const [switches, setSwitches] = useState<Switches>({
    fair_share: settings.fair_share ?? true,
    backfill: settings.backfill ?? true,
    preempt: settings.preempt ?? true,
  });
  const ask = useMutation({
    mutationFn: () => simulate(toRequest(workload, changesOf(before, rows), switches, settings)),
    onSuccess: (made) => onCreated(made.id),
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
            value={workload.kind}
            data={[
              { value: "history", label: "Past jobs" },
              { value: "generate", label: "Generated jobs" },
            ]}
            onChange={(kind) => setWorkload({ ...workload, kind })}
          />
          <NumberInput
            label={workload.kind === "history" ? "Days of history" : "Days"}
            min={1}
            max={366}
            w={140}
            value={workload.days}
            onChange={(days) => setWorkload({ ...workload, days })}
          />
          {workload.kind === "generate"
            ? GENERATOR_FIELDS.map(({ name, label, most }) => (
                <NumberInput
                  key={name}
                  label={label}
                  min={1}
                  max={most}
                  w={160}
                  value={workload[name]}
                  onChange={(value) => setWorkload({ ...workload, [name]: value })}
                />
              ))
            : null}
        </Group>
        <Text size="sm" c="dimmed">
          Replays these jobs on the current tree and on your edited copy. Nothing is applied. An empty limit
          means unlimited; empty own slots mean 0; a row with all fields empty removes the grant.
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
            Reset table
          </Button>
          <Button loading={ask.isPending} onClick={() => ask.mutate()}>
            Run
          </Button>
        </Group>
      </Stack>
    </Panel>
  );
}
