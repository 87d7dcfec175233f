import { queryOptions } from "@tanstack/react-query";

import { request } from "@/api/client";
import type { Calibration, Page, PoolQueue } from "@/api/types";

const POLL_MS = 5_000;

export function queueQuery() {
  return queryOptions({
    queryKey: ["queue"],
    queryFn: ({ signal }) => request<Page<PoolQueue>>("/queue", { signal }),
    refetchInterval: POLL_MS,
  });
}

/** How accurate earlier start estimates were. */
export function calibrationQuery() {
  return queryOptions({
    queryKey: ["queue", "calibration"],
    queryFn: ({ signal }) => request<Calibration>("/queue/calibration", { signal }),
  });
}
