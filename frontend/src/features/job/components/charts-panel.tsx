import { CloseButton, Stack } from "@mantine/core";
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useMemo } from "react";

import type { Job, Metrics, Series } from "@/api/types";
import { ChartCard } from "@/charts/chart-card";
import { ChartControls } from "@/charts/chart-controls";
import type { Unit } from "@/charts/units";
import { unitOf } from "@/charts/units";
import { stepsShown, useChartLook } from "@/charts/use-chart-look";
import { EmptyState } from "@/components/empty-state";
import { Panel } from "@/components/panel";
import { ProblemNotice } from "@/components/problem-notice";
import { METRICS, metricsQuery, zoomQuery } from "@/features/job/api/queries";
import type { Task } from "@/features/job/lib/task";
import { taskOf } from "@/features/job/lib/task";
import { firstTime, overTime, overTokens, refine } from "@/lib/series";
import { isFinal } from "@/lib/status";

import classes from "./charts-panel.module.css";

/** Why a job has no charts of training. */
const WITHOUT_CHARTS: Record<Task, string> = {
  training: "The job ended before its first step.",
  prepare: "The job prepares data and trains nothing. The timeline shows what it has stored.",
  evaluation: "The job evaluates a model and trains nothing. Its results are in the timeline, and on the page of a registered model.",
  replay: "The job computes steps of another job again. Its results are under Outputs.",
  export: "The job exports a checkpoint and trains nothing. Its model is under Outputs.",
};
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
    title: "Peak memory of the largest process",
    optional: true,
    unit: "bytes",
    lines: [{ metric: "memory/peak_bytes", label: "bytes", color: "--series-4" }],
  },
  {
    title: "Where a step's time goes, first process",
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

function chartOfSeries(name: string): ChartOf {
  return { title: name, unit: unitOf(name), lines: [{ metric: name, label: name, color: "--series-1" }] };
}

export function ChartsPanel({ job }: { job: Job }) {
  const look = useChartLook();
  const { axis, added, zoom } = look;
  const metrics = useQuery(metricsQuery(job, added, useQueryClient()));
  const counts = metrics.data?.tokens ?? null;
  const steps = stepsShown(axis, zoom, counts);
  const closer = useQuery(zoomQuery(job, added, steps)).data;
  const isClose = steps !== null;
  const data = useMemo(() => {
    if (!metrics.data || !closer || !isClose) return metrics.data;
    const series = Object.fromEntries(
      Object.entries(metrics.data.series).map(([name, base]) => [
        name,
        refine(base, closer.series[name] ?? EMPTY),
      ]),
    );
    return { ...metrics.data, series };
  }, [metrics.data, closer, isClose]);

  const charts = useMemo(() => {
    const origin = firstTime(Object.values(data?.series ?? {}));
    const place = (series: Series) => {
      if (axis === "tokens" && counts !== null) return overTokens(series, counts);
      return axis === "time" ? overTime(series, origin) : series;
    };
    const usual = CHARTS.filter((chart) => !chart.optional || hasValues(data, chart));
    return [...usual, ...added.map(chartOfSeries)].map((chart) => ({
      ...chart,
      lines: chart.lines
        .filter((line) => !line.optional || data?.series[line.metric] !== undefined)
        .map((line) => ({ ...line, series: place(data?.series[line.metric] ?? EMPTY) })),
    }));
  }, [data, axis, counts, added]);

  const task = taskOf(job);
  if ((isFinal(job.status) || task !== "training") && data && CHARTS.every((chart) => !hasValues(data, chart))) {
    return (
      <Panel>
        <EmptyState title="No charts">{WITHOUT_CHARTS[task]}</EmptyState>
      </Panel>
    );
  }
  const others = (data?.names ?? []).filter((name) => !METRICS.includes(name) && !added.includes(name));
  return (
    <Stack gap="md">
      <ChartControls look={look} timeName="Time" others={others} />
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
              logarithmic={look.logarithmic}
              height={chart.wide ? 290 : 200}
              onZoom={look.reportZoom}
              zoom={zoom}
              tools={
                added.includes(chart.title) ? (
                  <CloseButton
                    size="sm"
                    aria-label={`Remove the chart of ${chart.title}`}
                    onClick={() => look.remove(chart.title)}
                  />
                ) : null
              }
            />
          </div>
        ))}
      </div>
    </Stack>
  );
}
