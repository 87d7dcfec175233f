import { Stack } from "@mantine/core";
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useMemo } from "react";

import type { Job, Metrics, Series } from "@/api/types";
import { ChartCard } from "@/charts/chart-card";
import { ChartControls, useChartLook } from "@/charts/chart-controls";
import type { Unit } from "@/charts/units";
import { useZooms } from "@/charts/use-zooms";
import { EmptyState } from "@/components/empty-state";
import { Panel } from "@/components/panel";
import { ProblemNotice } from "@/components/problem-notice";
import { metricsQuery, zoomQuery } from "@/features/job/api/queries";
import { firstTime, overTime, refine } from "@/lib/series";
import { isFinal } from "@/lib/status";

import classes from "./charts-panel.module.css";

const EMPTY: Series = { steps: [], values: [], times: [] };

interface LineOf {
  metric: string;
  label: string;
  color: string;
  marked?: boolean;
  /** Left out while it has no values. */
  optional?: boolean;
}

interface ChartOf {
  title: string;
  lines: LineOf[];
  unit: Unit;
  wide?: boolean;
  /** Shown only once it has values; the others hold their place from the start. */
  optional?: boolean;
}

const CHARTS: ChartOf[] = [
  {
    title: "Loss",
    wide: true,
    unit: "loss",
    lines: [
      { metric: "train/loss", label: "training loss", color: "--series-1" },
      { metric: "evaluation/loss", label: "validation loss", color: "--series-2", marked: true, optional: true },
    ],
  },
  {
    title: "Throughput (tokens/s)",
    unit: "count",
    lines: [{ metric: "throughput/tokens_per_second", label: "tokens/s", color: "--series-3" }],
  },
  {
    title: "Learning rate",
    unit: "plain",
    lines: [{ metric: "train/learning_rate", label: "learning rate", color: "--series-4" }],
  },
  {
    title: "Gradient norm",
    optional: true,
    unit: "plain",
    lines: [{ metric: "train/gradient_norm", label: "gradient norm", color: "--series-1" }],
  },
  {
    title: "Step time",
    optional: true,
    unit: "seconds",
    lines: [{ metric: "time/step_seconds", label: "seconds", color: "--series-2" }],
  },
  {
    title: "Model FLOPs utilisation",
    optional: true,
    unit: "fraction",
    lines: [{ metric: "throughput/mfu_causal", label: "MFU, causal", color: "--series-3" }],
  },
  {
    title: "Peak memory per process",
    optional: true,
    unit: "bytes",
    lines: [{ metric: "memory/peak_bytes", label: "bytes", color: "--series-4" }],
  },
  {
    title: "Where a step's time goes",
    optional: true,
    wide: true,
    unit: "seconds",
    lines: [
      { metric: "time/forward_seconds", label: "forward", color: "--series-1" },
      { metric: "time/backward_seconds", label: "backward", color: "--series-6" },
      { metric: "time/idle_seconds", label: "idle in the pipeline", color: "--series-8", optional: true },
      { metric: "time/communication_seconds", label: "communication", color: "--series-2" },
      { metric: "time/optimizer_seconds", label: "optimizer", color: "--series-3" },
      { metric: "time/data_stall_seconds", label: "waiting for data", color: "--series-5" },
      { metric: "time/other_seconds", label: "other", color: "--series-4" },
    ],
  },
];

function hasValues(metrics: Metrics | undefined, chart: ChartOf): boolean {
  return chart.lines.some((line) =>
    (metrics?.series[line.metric]?.values ?? []).some((value) => value !== null),
  );
}

export function ChartsPanel({ job }: { job: Job }) {
  const metrics = useQuery(metricsQuery(job, useQueryClient()));
  const look = useChartLook();
  const { axis } = look;
  // A second of the time axis is no step: what is zoomed into there is shown as it was read.
  const [zoom, tellZoom] = useZooms();
  const closer = useQuery(zoomQuery(job, axis === "step" ? zoom : null)).data;
  const data = useMemo(() => {
    if (!metrics.data || !closer || zoom === null || axis !== "step") return metrics.data;
    const series = Object.fromEntries(
      Object.entries(metrics.data.series).map(([name, base]) => [
        name,
        refine(base, closer.series[name] ?? EMPTY),
      ]),
    );
    return { ...metrics.data, series };
  }, [metrics.data, closer, zoom, axis]);

  const charts = useMemo(() => {
    const origin = firstTime(Object.values(data?.series ?? {}));
    const place = (series: Series) => (axis === "step" ? series : overTime(series, origin));
    return CHARTS.filter((chart) => !chart.optional || hasValues(data, chart)).map((chart) => ({
      ...chart,
      lines: chart.lines
        .filter((line) => !line.optional || data?.series[line.metric] !== undefined)
        .map((line) => ({ ...line, series: place(data?.series[line.metric] ?? EMPTY) })),
    }));
  }, [data, axis]);

  if (isFinal(job.status) && data && CHARTS.every((chart) => !hasValues(data, chart))) {
    return (
      <Panel>
        <EmptyState title="No data yet">The job ended before its first step.</EmptyState>
      </Panel>
    );
  }
  return (
    <Stack gap="md">
      <ChartControls look={look} timeName="Time" />
      {metrics.error ? <ProblemNotice error={metrics.error} onRetry={() => void metrics.refetch()} /> : null}
      <div className={classes.grid}>
        {charts.map((chart) => (
          <div key={chart.title} className={chart.wide ? classes.wide : undefined}>
            <ChartCard
              title={chart.title}
              lines={chart.lines}
              axis={axis}
              group={job.id}
              unit={chart.unit}
              smoothing={look.smoothing}
              logarithmic={look.logarithmic && chart.title === "Loss"}
              height={chart.wide ? 290 : 200}
              onZoom={tellZoom}
            />
          </div>
        ))}
      </div>
    </Stack>
  );
}
