import type { ReactNode } from "react";

import type { Job, JobSummary, Json, JsonObject } from "@/api/types";
import { TimeAgo } from "@/components/time-ago";
import { count, duration, loss, NOTHING, percent } from "@/lib/format";
import { runTime } from "@/lib/run-time";
import { flat, withUnits } from "@/lib/spec-differences";

/** A job of a list: with its resolved spec where a column shows a field of it. */
export type ListedJob = JobSummary & Partial<Pick<Job, "resolved_spec">>;

export interface Column {
  id: string;
  heading: string;
  /** What stands beside the value where a narrow screen shows no headings. */
  label: string;
  /** The name of its order in `GET /jobs`; without one the table cannot be sorted by it. */
  sort?: string;
  value: (job: ListedJob, now: number) => ReactNode;
}

const SPEC = "spec.";

const COLUMNS: Column[] = [
  {
    id: "loss",
    heading: "Training loss",
    label: "training loss",
    sort: "loss",
    value: ({ progress }) => loss(progress?.loss),
  },
  {
    id: "validation_loss",
    heading: "Validation loss",
    label: "validation loss",
    sort: "validation_loss",
    value: ({ progress, validation_loss }) => loss(validation_loss?.after ?? progress?.validation_loss),
  },
  {
    id: "mean_rate",
    heading: "Tokens/s, mean",
    label: "tokens/s",
    sort: "mean_tokens_per_second",
    value: ({ progress }) => count(progress?.mean_tokens_per_second ?? progress?.tokens_per_second),
  },
  {
    id: "rate",
    heading: "Tokens/s, newest",
    label: "tokens/s, newest",
    value: ({ progress }) => count(progress?.tokens_per_second),
  },
  { id: "mfu", heading: "MFU, mean", label: "MFU", value: ({ progress }) => percent(progress?.mean_mfu) },
  { id: "tokens", heading: "Tokens", label: "tokens", value: ({ progress }) => count(progress?.tokens_seen) },
  { id: "ran", heading: "Ran for", label: "ran", value: (job, now) => duration(runTime(job, now)) },
  {
    id: "submitted",
    heading: "Submitted",
    label: "",
    sort: "created_at",
    value: (job, now) => <TimeAgo time={job.created_at} now={now} />,
  },
  { id: "person", heading: "Submitted by", label: "by", value: (job) => job.created_by },
  { id: "cluster", heading: "Cluster", label: "cluster", value: (job) => job.cluster },
  { id: "priority", heading: "Priority", label: "priority", value: (job) => job.priority },
  { id: "attempts", heading: "Attempts", label: "attempts", value: (job) => job.attempt_count },
  {
    id: "labels",
    heading: "Labels",
    label: "labels",
    value: (job) =>
      Object.entries(job.labels)
        .map(([key, value]) => `${key}=${value}`)
        .join(", ") || NOTHING,
  },
];

export const DEFAULT_COLUMNS = ["loss", "validation_loss", "mean_rate", "ran", "submitted"];

function shown(value: Json | undefined): string {
  if (value === undefined || value === null) return NOTHING;
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

function fieldOf(spec: JsonObject | undefined, path: string): Json | undefined {
  const value = spec === undefined ? undefined : flat(spec).get(path);
  return value === undefined ? undefined : withUnits(path, value);
}

/** The column with this id: one of the platform's, or `spec.PATH` for a field of the resolved spec. */
export function columnOf(id: string): Column | undefined {
  if (!id.startsWith(SPEC)) return COLUMNS.find((column) => column.id === id);
  const path = id.slice(SPEC.length);
  return { id, heading: path, label: path, value: (job) => shown(fieldOf(job.resolved_spec, path)) };
}

export function readsSpec(ids: string[]): boolean {
  return ids.some((id) => id.startsWith(SPEC));
}

/** What may be chosen: the platform's columns, then the fields of these jobs' specs, those that differ first. */
export function choicesOf(jobs: ListedJob[]): { group: string; items: { value: string; label: string }[] }[] {
  const specs = jobs.flatMap((job) => (job.resolved_spec ? [flat(job.resolved_spec)] : []));
  const paths = [...new Set(specs.flatMap((fields) => [...fields.keys()]))].sort();
  const differs = (path: string) => new Set(specs.map((fields) => JSON.stringify(fields.get(path)))).size > 1;
  const choice = (path: string) => ({ value: SPEC + path, label: path });
  return [
    { group: "Job", items: COLUMNS.map(({ id, heading }) => ({ value: id, label: heading })) },
    { group: "Spec, differs between these jobs", items: paths.filter(differs).map(choice) },
    { group: "Spec, the same in these jobs", items: paths.filter((path) => !differs(path)).map(choice) },
  ];
}
