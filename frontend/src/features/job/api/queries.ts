import type { QueryClient } from "@tanstack/react-query";
import { keepPreviousData, queryOptions } from "@tanstack/react-query";

import { address, request } from "@/api/client";
import { jobKeys } from "@/api/jobs";
import type { Artifact, Checkpoint, Efficiency, EventPage, Goodput, Job, JobEvent, LogLine, LogPage, Metrics, Page, Preflight, Profile, ReplayedSegment, SystemState, Timeline } from "@/api/types";
import type { Zoom } from "@/charts/plot-options";
import { pixels } from "@/lib/pixels";
import { longest, spliceMetrics } from "@/lib/series";
import { isFollowed } from "@/lib/followed";
import { isFinal } from "@/lib/status";

/** All that is drawn; asked for by name, so that a job with a thousand series stays quick. */
export const METRICS = [
  "train/loss",
  "evaluation/loss",
  "throughput/tokens_per_second",
  "train/learning_rate",
  "train/gradient_norm",
  "throughput/mfu_causal",
  "time/step_seconds",
  "time/forward_seconds",
  "time/backward_seconds",
  "time/idle_seconds",
  "time/communication_seconds",
  "time/optimizer_seconds",
  "time/data_stall_seconds",
  "time/other_seconds",
  "memory/peak_bytes",
];

/** Full charts are requested at a common screen width; a zoomed range at its own. */
const POINTS = 800;
/** An evaluation arrives after the training step it belongs to: the last steps are asked for again. */
const OVERLAP_STEPS = 20;
const POLL_MS = 2_000;
const LOG_POLL_MS = 1_500;
const TIMELINE_POLL_MS = 5_000;
const SYSTEM_POLL_MS = 15_000;
const GOODPUT_POLL_MS = 15_000;
const FOLLOWED_MS = 30_000;
/** The last lines and values reach the server a little after the job's end. */
const SETTLING_MS = 15_000;
const LOG_TAIL = 500;
const OUTPUT_POLL_MS = 5_000;
const OUTPUT_NEXT_MS = 200;
const OUTPUT_KEPT = 500_000;
const LOG_LINES_KEPT = 50_000;

export function isSettling(job: Job): boolean {
  if (!isFinal(job.status)) return true;
  return job.finished_at !== null && Date.now() - Date.parse(job.finished_at) < SETTLING_MS;
}

/** With a stream, a live job is polled rarely; after its end, late data arrives without an event. */
const poll = (job: Job, every: number) => () => {
  if (!isSettling(job)) return false;
  return isFollowed(job.id) && !isFinal(job.status) ? FOLLOWED_MS : every;
};

function path(job: Job, part: string): string {
  return `/jobs/${encodeURIComponent(job.id)}/${part}`;
}

type Output = { text: string; cursor: string; isWhole: boolean };

/** The output that an attempt's cluster stored, read on from the last offset. */
export function outputQuery(job: Job, attempt: Job["attempts"][number], client: QueryClient) {
  const key = jobKeys.part(job.id, "output", attempt.number);
  return queryOptions({
    queryKey: key,
    queryFn: async ({ signal }): Promise<Output> => {
      const before = client.getQueryData<Output>(key) ?? { text: "", cursor: "", isWhole: false };
      const part = await request<Omit<Output, "isWhole">>(path(job, `attempts/${attempt.number}/output`), {
        query: before.cursor ? { cursor: before.cursor } : {},
        signal,
      });
      return { text: (before.text + part.text).slice(-OUTPUT_KEPT), cursor: part.cursor, isWhole: part.text === "" };
    },
    refetchInterval: ({ state }) => {
      if (state.data && !state.data.isWhole) return OUTPUT_NEXT_MS;
      return attempt.finished_at === null ? OUTPUT_POLL_MS : false;
    },
  });
}

/** Reads only what is new, and everything again when the parts have grown too many or another attempt began. */
export function metricsQuery(job: Job, added: string[], client: QueryClient) {
  const key = jobKeys.part(job.id, "metrics", job.attempt_count, isFinal(job.status), added);
  return queryOptions({
    queryKey: key,
    queryFn: async ({ signal }): Promise<Metrics> => {
      const before = client.getQueryData<Metrics>(key);
      const query = { names: [...METRICS, ...added].join(","), points: POINTS };
      if (!before || before.last_step < 0 || longest(before) > 2 * POINTS) {
        return request<Metrics>(path(job, "metrics"), { query, signal });
      }
      const after = Math.max(0, before.last_step - OVERLAP_STEPS);
      const tail = await request<Metrics>(path(job, "metrics"), {
        query: { ...query, after_step: after },
        signal,
      });
      return spliceMetrics(before, tail);
    },
    placeholderData: keepPreviousData,
    refetchInterval: poll(job, POLL_MS),
  });
}

/** A stretch of steps of the charts seen closely: as many points of it as the screen has pixels. */
export function zoomQuery(job: Job, added: string[], zoom: Zoom | null) {
  const from = Math.max(0, Math.floor(zoom?.from ?? 0));
  const to = Math.ceil(zoom?.to ?? 0);
  return queryOptions({
    queryKey: jobKeys.part(job.id, "zoom", job.attempt_count, isFinal(job.status), from, to, added),
    queryFn: ({ signal }) =>
      request<Metrics>(path(job, "metrics"), {
        query: { names: [...METRICS, ...added].join(","), points: pixels(), after_step: from - 1, to_step: to },
        signal,
      }),
    enabled: zoom !== null,
    staleTime: 60_000,
    placeholderData: keepPreviousData,
  });
}

export function eventsQuery(job: Job, client: QueryClient) {
  const key = jobKeys.part(job.id, "events");
  return queryOptions({
    queryKey: key,
    queryFn: async ({ signal }): Promise<JobEvent[]> => {
      const before = client.getQueryData<JobEvent[]>(key) ?? [];
      const after = before.at(-1)?.seq ?? 0;
      const fresh = await request<EventPage>(path(job, "events"), {
        query: { after, limit: 200 },
        signal,
      });
      return fresh.items.length === 0 ? before : [...before, ...fresh.items];
    },
    refetchInterval: poll(job, POLL_MS),
  });
}

/** The present activity takes longer without any event, so a live job's times are asked for again. */
export function timelineQuery(job: Job) {
  return queryOptions({
    queryKey: jobKeys.part(job.id, "timeline"),
    queryFn: ({ signal }) => request<Timeline>(path(job, "timeline"), { signal }),
    refetchInterval: () => (isSettling(job) ? TIMELINE_POLL_MS : false),
  });
}

/** What the slots were held for, with its cost; of a live job until now. */
export function goodputQuery(job: Job) {
  return queryOptions({
    queryKey: jobKeys.part(job.id, "goodput"),
    queryFn: ({ signal }) => request<Goodput>(path(job, "goodput"), { signal }),
    refetchInterval: () => (isSettling(job) ? GOODPUT_POLL_MS : false),
  });
}

/** How well the slots were used; of a live job until now. */
export function efficiencyQuery(job: Job) {
  return queryOptions({
    queryKey: jobKeys.part(job.id, "efficiency"),
    queryFn: ({ signal }) => request<Efficiency>(path(job, "efficiency"), { signal }),
    refetchInterval: () => (isSettling(job) ? GOODPUT_POLL_MS : false),
  });
}

/** What each attempt measured before its first step, the newest first. */
export function preflightsQuery(job: Job) {
  return queryOptions({
    queryKey: jobKeys.part(job.id, "preflights"),
    queryFn: ({ signal }) => request<Page<Preflight>>(path(job, "preflights"), { signal }),
    refetchInterval: () => (isSettling(job) ? SYSTEM_POLL_MS : false),
  });
}

/** Load and health of the job's machines; a node sends its samples once a minute. */
export function systemQuery(job: Job) {
  return queryOptions({
    queryKey: jobKeys.part(job.id, "system"),
    queryFn: ({ signal }) => request<SystemState>(path(job, "system"), { signal }),
    refetchInterval: () => (isSettling(job) ? SYSTEM_POLL_MS : false),
  });
}

export interface LogFilter {
  grep: string;
  rank: string;
  attempt: string;
}

export interface LogView {
  lines: LogLine[];
  /** Null before the first answer. */
  next: number | null;
  /** Where the lines before these are; null if there are none. */
  before: number | null;
}

const NO_LINES: LogView = { lines: [], next: null, before: null };

export function logsQuery(job: Job, filter: LogFilter, client: QueryClient) {
  const key = jobKeys.part(job.id, "logs", filter);
  return queryOptions({
    queryKey: key,
    queryFn: async ({ signal }): Promise<LogView> => {
      const shown = client.getQueryData<LogView>(key) ?? NO_LINES;
      const from = shown.next === null ? { tail: LOG_TAIL } : { after: shown.next, limit: LOG_TAIL };
      const fresh = await request<LogPage>(path(job, "logs"), {
        query: { ...filter, ...from },
        signal,
      });
      // Earlier lines may have been added meanwhile.
      const now = client.getQueryData<LogView>(key) ?? NO_LINES;
      const lines = [...now.lines, ...fresh.items].slice(-LOG_LINES_KEPT);
      const before = shown.next === null ? fresh.next_before : now.before;
      return { lines, next: fresh.next_after, before: lines.length === LOG_LINES_KEPT ? (lines[0]?.cursor ?? null) : before };
    },
    refetchInterval: poll(job, LOG_POLL_MS),
  });
}

/** Put the lines before those that are shown in front of them. */
export async function loadEarlierLines(job: Job, filter: LogFilter, client: QueryClient): Promise<void> {
  const key = jobKeys.part(job.id, "logs", filter);
  const before = client.getQueryData<LogView>(key)?.before;
  if (before == null) return;
  const found = await request<LogPage>(path(job, "logs"), { query: { ...filter, tail: LOG_TAIL, before } });
  client.setQueryData<LogView>(key, (shown) =>
    shown?.before === before ? { ...shown, lines: [...found.items, ...shown.lines], before: found.next_before } : shown,
  );
}

export function logAddress(job: Job, filter: LogFilter): string {
  return address(path(job, "logs:download"), { ...filter });
}

export function checkpointsQuery(job: Job) {
  return queryOptions({
    queryKey: jobKeys.part(job.id, "checkpoints"),
    queryFn: ({ signal }) => request<Page<Checkpoint>>(path(job, "checkpoints"), { signal }),
    refetchInterval: poll(job, 2 * POLL_MS),
  });
}

export function artifactsQuery(job: Job) {
  return queryOptions({
    queryKey: jobKeys.part(job.id, "artifacts"),
    queryFn: ({ signal }) => request<Page<Artifact>>(path(job, "artifacts"), { signal }),
    refetchInterval: poll(job, 2 * POLL_MS),
  });
}

export function replaysQuery(job: Job) {
  return queryOptions({
    queryKey: jobKeys.part(job.id, "replays"),
    queryFn: ({ signal }) => request<Page<ReplayedSegment>>(path(job, "replays"), { signal }),
    refetchInterval: poll(job, 2 * POLL_MS),
  });
}

export function profilesQuery(job: Job) {
  return queryOptions({
    queryKey: jobKeys.part(job.id, "profiles"),
    queryFn: ({ signal }) => request<Page<Profile>>(path(job, "profiles"), { signal }),
    refetchInterval: poll(job, 2 * POLL_MS),
  });
}
