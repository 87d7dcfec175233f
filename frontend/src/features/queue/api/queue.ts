import { queryOptions } from "@tanstack/react-query";

import { request } from "@/api/client";
import type { Page, PoolQueue } from "@/api/types";

const POLL_MS = 5_000;

export function queueQuery() {
  return queryOptions({
    queryKey: ["queue"],
    queryFn: ({ signal }) => request<Page<PoolQueue>>("/queue", { signal }),
    refetchInterval: POLL_MS,
  });
}
