import { Button, Checkbox, CloseButton } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import { Link, useSearchParams } from "react-router";

import type { Curve, JobCurves, Series } from "@/api/types";
import type { ChartLine } from "@/charts/chart-card";
import { ChartCard } from "@/charts/chart-card";
import { ChartControls } from "@/charts/chart-controls";
import type { Unit } from "@/charts/units";
import { unitOf } from "@/charts/units";
import type { ChartLook } from "@/charts/use-chart-look";
import { stepsShown, useChartLook } from "@/charts/use-chart-look";
import { union } from "@/charts/zooms";
import { EmptyState } from "@/components/empty-state";
import { Page } from "@/components/page";
import { Panel } from "@/components/panel";
import { ProblemNotice } from "@/components/problem-notice";
import { StatusBadge } from "@/components/status-badge";
import { COMPARED, curvesQuery } from "@/features/compare/api/queries";
import { ComparedTables } from "@/features/compare/components/compared-tables";
import { shortId } from "@/lib/format";
import { overTokens, refine } from "@/lib/series";

import classes from "./compare-page.module.css";

const COLORS = 8;

const CHARTS: Record<string, { title: string; unit: Unit; marked?: boolean }> = {
  "train/loss": { title: "Training loss", unit: "loss" },
  "evaluation/loss": { title: "Validation loss", unit: "loss", marked: true },
  "throughput/tokens_per_second": { title: "Throughput (tokens/s)", unit: "count" },
  "train/learning_rate": { title: "Learning rate", unit: "plain" },
  "train/gradient_norm": { title: "Gradient norm", unit: "plain" },
  "time/step_seconds": { title: "Step time", unit: "seconds" },
  "throughput/mfu_causal": { title: "Model FLOPs utilisation", unit: "fraction" },
  "memory/peak_bytes": { title: "Peak memory of the largest process", unit: "bytes" },
};

interface Runner extends JobCurves {
  color: string;
}

/** A curve as charts take it; its seconds stand where a job's charts have times. */
function placed(job: JobCurves, name: string, closer: Curve | undefined, look: ChartLook): ChartLine["series"] {
  const curve = job.series[name] as Curve;
  if (look.axis === "time") return { steps: curve.seconds, values: curve.values };
  const series = (one: Curve): Series => ({ steps: one.steps, values: one.values, times: [] });
  const found = closer ? refine(series(curve), series(closer)) : series(curve);
  return look.axis === "tokens" && job.tokens ? overTokens(found, job.tokens) : found;
}

function useCompared(look: ChartLook) {
  const [search] = useSearchParams();
  const named = search.get("jobs") ?? "";
  const ids = useMemo(() => [...new Set(named.split(",").filter(Boolean))], [named]);
  const overview = useQuery(curvesQuery(ids, look.added, null));
  const items = overview.data?.items ?? [];
  const near = union(items.map((job) => stepsShown(look.axis, look.zoom, job.tokens)));
  const closer = useQuery({ ...curvesQuery(ids, look.added, near), enabled: near !== null && ids.length > 0 }).data;
  const runners: Runner[] = items.map((job, index) => ({
    ...job,
    color: `--series-${(index % COLORS) + 1}`,
  }));
  const nearer = near === null ? [] : (closer?.items ?? []);
  return { ids, overview, runners, nearer };
}

export function ComparePage() {
  const look = useChartLook();
  const { ids, overview, runners, nearer } = useCompared(look);
  const [hidden, setHidden] = useState<ReadonlySet<string>>(new Set());
  const toggle = (id: string) =>
    setHidden((before) => {
      const after = new Set(before);
      if (!after.delete(id)) after.add(id);
      return after;
    });
  const linesOf = (name: string): ChartLine[] =>
    runners
      .filter((job) => !hidden.has(job.id) && job.series[name])
      .map((job) => ({
        label: `${job.name} ${shortId(job.id)}`,
        color: job.color,
        marked: CHARTS[name]?.marked ?? false,
        series: placed(job, name, nearer.find((one) => one.id === job.id)?.series[name], look),
      }));
  const drawn = [...COMPARED.filter((name) => runners.some((job) => job.series[name])), ...look.added];
  const others = (overview.data?.names ?? []).filter((name) => !COMPARED.includes(name) && !look.added.includes(name));
  const back = (
    <Button component={Link} to="/jobs" variant="default">
      Choose jobs
    </Button>
  );
  return (
    <Page
      title="Compare"
      lead={`${String(ids.length)} jobs, overlaid`}
      actions={ids.length > 0 ? back : null}
    >
      {overview.error ? <ProblemNotice error={overview.error} onRetry={() => void overview.refetch()} /> : null}
      {ids.length === 0 ? (
        <Panel>
          <EmptyState title="Nothing to compare yet" action={back}>
            Choose two jobs or more in the table of jobs.
          </EmptyState>
        </Panel>
      ) : (
        <>
          <Legend runners={runners} hidden={hidden} onToggle={toggle} />
          <ChartControls look={look} timeName="Time since start" others={others} />
          <div className={classes.grid}>
            {drawn.map((name) => {
              const chart = CHARTS[name] ?? { title: name, unit: unitOf(name) };
              return (
                <ChartCard
                  key={name}
                  title={chart.title}
                  lines={linesOf(name)}
                  axis={look.axis}
                  group="compare"
                  unit={chart.unit}
                  smoothing={look.smoothing}
                  logarithmic={look.logarithmic}
                  onZoom={look.reportZoom}
                  zoom={look.zoom}
                  tools={
                    look.added.includes(name) ? (
                      <CloseButton
                        size="sm"
                        aria-label={`Remove the chart of ${name}`}
                        onClick={() => look.remove(name)}
                      />
                    ) : null
                  }
                />
              );
            })}
          </div>
          {overview.data && drawn.length === 0 ? (
            <Panel>
              <EmptyState title="No data yet">None of these jobs has finished a step.</EmptyState>
            </Panel>
          ) : null}
          <ComparedTables ids={ids} />
        </>
      )}
    </Page>
  );
}

interface LegendProps {
  runners: Runner[];
  hidden: ReadonlySet<string>;
  onToggle: (id: string) => void;
}

/** The legend: which line belongs to which job; a click hides or shows it. */
function Legend({ runners, hidden, onToggle }: LegendProps) {
  return (
    <Panel>
      <ul className={classes.legend} aria-label="Compared jobs">
        {runners.map((job) => (
          <li key={job.id} className={classes.entry}>
            <Checkbox
              size="xs"
              color={`var(${job.color})`}
              aria-label={`Show ${job.name}, ${shortId(job.id)}`}
              checked={!hidden.has(job.id)}
              onChange={() => onToggle(job.id)}
            />
            <Link to={`/jobs/${job.id}`}>{job.name}</Link>
            <span className="mono soft">{shortId(job.id)}</span>
            <StatusBadge status={job.status} />
          </li>
        ))}
      </ul>
    </Panel>
  );
}
