import { SimpleGrid, Stack, Text } from "@mantine/core";
import type { ReactNode } from "react";

import type { Simulation, SimulationFigures, SimulationReport } from "@/api/types";
import { PairBars } from "@/charts/pair-bars";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { Notice } from "@/components/notice";
import { Panel } from "@/components/panel";
import { count, duration, percent } from "@/lib/format";

interface Row {
  name: string;
  present: SimulationFigures;
  proposed: SimulationFigures | null;
}

const FIGURES: { name: string; of: (figures: SimulationFigures) => string }[] = [
  { name: "Wait, mean", of: (figures) => duration(figures.waits_seconds.mean) },
  { name: "Wait, median", of: (figures) => duration(figures.waits_seconds.p50) },
  { name: "Wait, P90", of: (figures) => duration(figures.waits_seconds.p90) },
  { name: "Wait, P99", of: (figures) => duration(figures.waits_seconds.p99) },
  { name: "Preempted", of: (figures) => count(figures.preemptions) },
  { name: "Slot-hours lost", of: (figures) => count(figures.lost_slot_hours) },
  { name: "Time running", of: (figures) => percent(figures.running_share) },
];

/** The figure under the present policy, and below it that under the proposed one. */
function both(present: string, proposed: string | null): ReactNode {
  return (
    <>
      <Text size="sm" component="div" className="numeric">
        {present}
      </Text>
      {proposed === null ? null : (
        <Text size="sm" component="div" className="numeric" fw={proposed === present ? 400 : 650}>
          {proposed}
        </Text>
      )}
    </>
  );
}

const COLUMNS: Column<Row>[] = [
  { name: "Team", cell: (row) => row.name },
  { name: "Jobs", end: true, quiet: true, cell: (row) => count(row.present.jobs) },
  ...FIGURES.map(({ name, of }) => ({
    name,
    end: true,
    cell: (row: Row) => both(of(row.present), row.proposed ? of(row.proposed) : null),
  })),
];

function summaryOf(report: SimulationReport): string {
  return `utilisation ${percent(report.utilisation)}, fairness ${report.fairness.toFixed(3)}, longest queue ${report.all.longest_queue}`;
}

/** What a simulation found; while it is under way, that it is. */
export function ResultPanel({ simulation }: { simulation: Simulation }) {
  const { result } = simulation;
  if (simulation.state === "failed") {
    return <Notice tone="bad" title="The simulation failed." urgent><p>{simulation.error}</p></Notice>;
  }
  if (result === null) {
    const title = simulation.state === "running" ? "The jobs are being replayed." : "Waiting for a worker.";
    return <Notice tone="active" title={title} />;
  }
  const { present, proposed } = result;
  const rows: Row[] = Object.entries(present.teams).map(([name, figures]) => ({
    name,
    present: figures,
    proposed: proposed?.teams[name] ?? null,
  }));
  rows.push({ name: "All", present: present.all, proposed: proposed?.all ?? null });
  return (
    <Stack>
      <Panel title="Result" flush>
        <Stack gap={2} p="sm">
          <Text size="sm">
            Current: {count(present.all.jobs)} jobs in {present.days.toFixed(1)} days, {summaryOf(present)}.
          </Text>
          {proposed ? (
            <Text size="sm" fw={550}>
              Proposed (second line of each team): {summaryOf(proposed)}.
            </Text>
          ) : null}
        </Stack>
        <DataTable label="Results by team" rows={rows} columns={COLUMNS} rowKey={(row) => row.name} />
      </Panel>
      <SimpleGrid cols={{ base: 1, md: 2 }}>
        <PairBars
          title="Mean wait"
          labels={["as it is", "as proposed"]}
          unit="seconds"
          pairs={rows.map((row) => ({
            name: row.name,
            first: row.present.waits_seconds.mean,
            second: row.proposed ? row.proposed.waits_seconds.mean : null,
          }))}
        />
        <PairBars
          title="Usage of each pool"
          labels={["as it is", "as proposed"]}
          unit="fraction"
          pairs={Object.entries(present.pools).map(([name, pool]) => ({
            name,
            first: pool.utilisation,
            second: proposed ? (proposed.pools[name]?.utilisation ?? 0) : null,
          }))}
        />
      </SimpleGrid>
    </Stack>
  );
}
