import { keepPreviousData, queryOptions } from "@tanstack/react-query";

import { request } from "@/api/client";
import type { Job, JobCost, MetricsAnswer } from "@/api/types";
import type { Zoom } from "@/charts/plot-options";
import { pixels } from "@/lib/pixels";
import { isFinal } from "@/lib/status";

/** All that is compared, each with a chart of its own once a job has values of it. */
export const COMPARED = [
  "train/loss",
  "evaluation/loss",
  "throughput/tokens_per_second",
  "train/learning_rate",
  "train/gradient_norm",
  "time/step_seconds",
  "throughput/mfu_causal",
  "memory/peak_bytes",
];

const LIVE_MS = 5_000;

/** Every curve of every job in one request; of the steps that are zoomed into, as many points as there are pixels. */
export function curvesQuery(jobs: string[], added: string[], zoom: Zoom | null) {
  const range = zoom && { from_step: Math.max(0, Math.floor(zoom.from)), to_step: Math.ceil(zoom.to) };
  return queryOptions({
    queryKey: ["compare", jobs, added, range],
    queryFn: ({ signal }) =>
      request<MetricsAnswer>("/metrics:query", {
        method: "POST",
        json: { jobs, series: [...COMPARED, ...added], points: pixels(), ...range },
        signal,
      }),
    enabled: jobs.length > 0,
    placeholderData: keepPreviousData,
    retry: false,
    refetchInterval: (query) =>
      zoom === null && query.state.data?.items.some((job) => !isFinal(job.status)) ? LIVE_MS : false,
  });
}

const FIELDS = [
  "id",
  "name",
  "status",
  "resolved_spec",
  "progress",
  "validation_loss",
  "ran_seconds",
  "running_since",
  "attempt_count",
] as const;
export type ComparedJob = Pick<Job, (typeof FIELDS)[number]>;

/** What the tables show of a job. */
export function comparedJobQuery(id: string) {
  return queryOptions({
    queryKey: ["compare", "job", id],
    queryFn: ({ signal }) =>
      request<ComparedJob>(`/jobs/${encodeURIComponent(id)}`, { query: { fields: FIELDS.join(",") }, signal }),
    retry: false,
    refetchInterval: ({ state }) => (state.data && !isFinal(state.data.status) ? LIVE_MS : false),
  });
}

export function comparedCostQuery(id: string) {
  return queryOptions({
    queryKey: ["job-cost", id],
    queryFn: ({ signal }) => request<JobCost>(`/jobs/${encodeURIComponent(id)}/cost`, { signal }),
    retry: false,
  });
}
