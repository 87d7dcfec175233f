import { Stack } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { useMemo } from "react";

import type { Job, SystemState } from "@/api/types";
import type { ChartLine } from "@/charts/chart-card";
import { ChartCard } from "@/charts/chart-card";
import type { Unit } from "@/charts/units";
import { reading } from "@/charts/units";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { EmptyState } from "@/components/empty-state";
import { Moment } from "@/components/moment";
import { Panel } from "@/components/panel";
import { ProblemNotice } from "@/components/problem-notice";
import { systemQuery } from "@/features/job/api/queries";
import { PreflightPanel } from "@/features/job/components/preflight-panel";
import classes from "@/features/job/components/charts-panel.module.css";

type SystemSeries = SystemState["series"][number];
type NodeSample = SystemState["nodes"][number];

/** Counters of errors, which have a chart only once there are some. */
const ERRORS = new Set([
  "system/gpu_throttled",
  "system/gpu_ecc_corrected",
  "system/gpu_ecc_uncorrected",
  "system/nvlink_errors",
]);

function unitOf(series: SystemSeries): Unit {
  return series.unit === "count" ? "plain" : series.unit;
}

function linesOf(series: SystemSeries, origin: number): ChartLine[] {
  const steps = series.times.map((time) => (Date.parse(time) - origin) / 1000);
  const mean = { label: "mean", color: "--series-1", series: { steps, values: series.means } };
  const isSpread = series.highest.some((value, at) => value !== series.lowest[at]);
  if (!isSpread) return [mean];
  return [
    { label: `highest, now ${series.highest_at.at(-1) ?? ""}`, color: "--series-2", series: { steps, values: series.highest } },
    mean,
    { label: `lowest, now ${series.lowest_at.at(-1) ?? ""}`, color: "--series-3", series: { steps, values: series.lowest } },
  ];
}

/** The highest value of a node, which is its most loaded or hottest GPU. */
function highest(name: string, unit: Unit) {
  return (sample: NodeSample) => {
    const known = (sample.values[name] ?? []).filter((value) => value !== null);
    return known.length === 0 ? "" : reading(Math.max(...known), unit);
  };
}

const NODE_COLUMNS: Column<NodeSample>[] = [
  { name: "Node", cell: (sample) => sample.node },
  { name: "GPU use", end: true, cell: highest("system/gpu_utilisation", "fraction") },
  { name: "GPU temperature", end: true, cell: highest("system/gpu_temperature", "celsius") },
  { name: "CPU use", end: true, cell: highest("system/cpu_utilisation", "fraction") },
  { name: "Memory", end: true, cell: highest("system/memory_used", "fraction") },
  { name: "Disk", end: true, cell: highest("system/disk_used", "fraction") },
  { name: "Sampled", end: true, quiet: true, cell: (sample) => <Moment time={sample.time} /> },
];

/** The preflight of the machines that the job runs on, then their load and health. */
export function SystemTab({ job }: { job: Job }) {
  return (
    <Stack gap="md">
      <PreflightPanel job={job} />
      <Samples job={job} />
    </Stack>
  );
}

/** Load and health over all nodes by time, then the newest sample of each node. */
function Samples({ job }: { job: Job }) {
  const { data, error, refetch } = useQuery(systemQuery(job));
  const charts = useMemo(() => {
    const shown = (data?.series ?? []).filter((one) => !ERRORS.has(one.name) || one.highest.some((value) => value > 0));
    const origin = Math.min(...shown.map((one) => Date.parse(one.times[0] ?? "")));
    return shown.map((one) => ({ name: one.name, title: one.title, unit: unitOf(one), lines: linesOf(one, origin) }));
  }, [data]);
  if (error) return <ProblemNotice error={error} onRetry={() => void refetch()} />;
  if (!data) return null;
  if (charts.length === 0) {
    return (
      <Panel>
        <EmptyState title="No samples yet">The machines of a job are sampled while it runs.</EmptyState>
      </Panel>
    );
  }
  return (
    <Stack gap="md">
      <div className={classes.grid}>
        {charts.map((chart) => (
          <div key={chart.name}>
            <ChartCard
              title={chart.title}
              lines={chart.lines}
              axis="time"
              group={`${job.id}-system`}
              unit={chart.unit}
              height={180}
            />
          </div>
        ))}
      </div>
      <Panel title="Nodes" flush>
        <DataTable label="Nodes" rows={data.nodes} columns={NODE_COLUMNS} rowKey={(sample) => sample.node} />
      </Panel>
    </Stack>
  );
}
