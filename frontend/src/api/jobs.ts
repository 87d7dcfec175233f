import { infiniteQueryOptions, keepPreviousData, queryOptions } from "@tanstack/react-query";

import { request } from "@/api/client";
import type { BulkResult, Job, JobSummary, JsonObject, Page, Plan, Preset, Profile } from "@/api/types";
import { isFollowed } from "@/lib/followed";
import { isFinal } from "@/lib/status";

/** The query parameters of `GET /jobs`; an empty one does not filter. Labels are `label.KEY`. */
export type JobFilters = Record<string, string>;

export const jobKeys = {
  all: ["jobs"] as const,
  lists: ["jobs", "list"] as const,
  list: (filters: JobFilters) => ["jobs", "list", filters] as const,
  detail: (id: string) => ["jobs", "detail", id] as const,
  part: (id: string, part: string, ...rest: unknown[]) => ["jobs", "detail", id, part, ...rest] as const,
};

export const JOBS_PER_PAGE = 50;
const LIVE_LIST_MS = 3_000;
const QUIET_LIST_MS = 15_000;
const LIVE_JOB_MS = 1_500;
/** With a stream, polling only fetches what the stream may have lost. */
const FOLLOWED_MS = 30_000;
export const ALL_JOBS = "jobs";

function anyLive(pages: Page<JobSummary>[] | undefined): boolean {
  return pages?.some((page) => page.items.some((job) => !isFinal(job.status))) ?? false;
}

/** Polls quickly only while something on the screen can still change and no stream reports it. */
export function jobsQuery(filters: JobFilters, { withSpecs = false } = {}) {
  const query = { ...filters, expand: withSpecs ? "resolved_spec" : "" };
  return infiniteQueryOptions({
    queryKey: jobKeys.list(query),
    queryFn: ({ pageParam, signal }) =>
      request<Page<JobSummary & Partial<Pick<Job, "resolved_spec">>>>("/jobs", {
        query: { ...query, limit: JOBS_PER_PAGE, cursor: pageParam },
        signal,
      }),
    initialPageParam: "",
    getNextPageParam: (page) => page.next_cursor,
    placeholderData: keepPreviousData,
    refetchInterval: ({ state }) => {
      if (isFollowed(ALL_JOBS)) return FOLLOWED_MS;
      return anyLive(state.data?.pages) ? LIVE_LIST_MS : QUIET_LIST_MS;
    },
  });
}

export function jobQuery(id: string) {
  return queryOptions({
    queryKey: jobKeys.detail(id),
    queryFn: ({ signal }) => request<Job>(`/jobs/${encodeURIComponent(id)}`, { signal }),
    refetchInterval: (query) => {
      if (query.state.data && isFinal(query.state.data.status)) return false;
      return isFollowed(id) ? FOLLOWED_MS : LIVE_JOB_MS;
    },
  });
}

export function presetsQuery() {
  return queryOptions({
    queryKey: ["presets"],
    queryFn: ({ signal }) => request<Page<Preset>>("/presets", { signal }),
    staleTime: 300_000,
  });
}

export function planJob(spec: JsonObject, signal: AbortSignal): Promise<Plan> {
  return request<Plan>("/jobs:plan", { method: "POST", json: spec, signal });
}

/** `key` is made once per form: a second click, or a retry after a cut connection, gives the same job. */
export function submitJob(spec: JsonObject, key: string): Promise<Job> {
  return request<Job>("/jobs", { method: "POST", json: spec, headers: { "Idempotency-Key": key } });
}

/** The same for a job that starts from another job's spec, so that the record keeps where it came from. */
export function forkJob(parent: string, changes: JsonObject, key: string): Promise<Job> {
  return request<Job>(`/jobs/${encodeURIComponent(parent)}:fork`, {
    method: "POST",
    json: { changes },
    headers: { "Idempotency-Key": key },
  });
}

export type JobAction = "cancel" | "pause" | "resume";

/** Writes what is wanted; the platform makes it so in its own time. */
export function actOnJob(id: string, action: JobAction): Promise<Job> {
  return request<Job>(`/jobs/${encodeURIComponent(id)}:${action}`, { method: "POST", json: {} });
}

/** The same for several jobs, each on its own: some may be refused. */
export function actOnJobs(ids: string[], action: JobAction): Promise<BulkResult> {
  return request<BulkResult>(`/jobs:${action}`, { method: "POST", json: { ids } });
}

/** A new job with the spec of one that has ended. */
export function retryJob(id: string): Promise<Job> {
  return request<Job>(`/jobs/${encodeURIComponent(id)}:retry`, { method: "POST", json: {} });
}

/** Traces of the next few steps of a running job; they come to its outputs when they are there. */
export function profileJob(id: string): Promise<Profile> {
  return request<Profile>(`/jobs/${encodeURIComponent(id)}:profile`, { method: "POST", json: {} });
}
