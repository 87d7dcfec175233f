import type { InfiniteData, QueryClient } from "@tanstack/react-query";
import { useQueryClient } from "@tanstack/react-query";
import { useMemo } from "react";

import type { ProgressChange } from "@/api/follow";
import { useFollow } from "@/api/follow";
import { ALL_JOBS, jobKeys } from "@/api/jobs";
import type { Job, JobSummary, Page } from "@/api/types";
import { setFollowed } from "@/lib/followed";
import { throttled } from "@/lib/throttle";

const EVENTS_MS = 500;
const NUMBERS_MS = 1_500;

/** The jobs table as it is changed elsewhere. The stream reports that something changed; the list is then fetched again. */
export function useLiveJobs(): void {
  const client = useQueryClient();
  const refresh = useMemo(
    () => throttled(() => void client.invalidateQueries({ queryKey: jobKeys.lists }), EVENTS_MS),
    [client],
  );
  useFollow("/events", {
    onEvent: refresh,
    onProgress: (change) => showInLists(client, change),
    onLive: (live) => {
      // A refetch decides again when the next one is due.
      if (setFollowed(ALL_JOBS, live)) refresh();
    },
  });
}

/** One job: its numbers as they come, everything else asked again when an event says so. */
export function useLiveJob(jobId: string): void {
  const client = useQueryClient();
  const key = jobKeys.detail(jobId);
  const refresh = useMemo(
    () => throttled(() => void client.invalidateQueries({ queryKey: jobKeys.detail(jobId) }), EVENTS_MS),
    [client, jobId],
  );
  const refreshNumbers = useMemo(
    () =>
      throttled(() => {
        void client.invalidateQueries({ queryKey: jobKeys.part(jobId, "metrics") });
        void client.invalidateQueries({ queryKey: jobKeys.part(jobId, "logs") });
      }, NUMBERS_MS),
    [client, jobId],
  );
  useFollow(jobId === "" ? null : `/jobs/${encodeURIComponent(jobId)}/events`, {
    onEvent: refresh,
    onProgress: (change) => {
      client.setQueryData<Job>(key, (job) => job && { ...job, progress: change.progress });
      refreshNumbers();
    },
    onLive: (live) => {
      if (setFollowed(jobId, live)) refresh();
    },
  });
}

function showInLists(client: QueryClient, change: ProgressChange): void {
  client.setQueriesData<InfiniteData<Page<JobSummary>>>({ queryKey: jobKeys.lists }, (data) => {
    if (!data?.pages.some((page) => page.items.some((job) => job.id === change.job_id))) return data;
    const shown = (job: JobSummary) => (job.id === change.job_id ? { ...job, progress: change.progress } : job);
    return { ...data, pages: data.pages.map((page) => ({ ...page, items: page.items.map(shown) })) };
  });
}
