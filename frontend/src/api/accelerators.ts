import { queryOptions } from "@tanstack/react-query";

import { request } from "@/api/client";
import type { Cluster, Page } from "@/api/types";

/** The accelerators of all pools, by name: what quotas and budgets can be about. */
export function acceleratorsQuery() {
  return queryOptions({
    queryKey: ["accelerators"],
    queryFn: ({ signal }) => request<Page<Cluster>>("/clusters", { signal }),
    select: (clusters) =>
      [...new Set(clusters.items.flatMap((cluster) => cluster.pools.map((pool) => pool.accelerator)))].sort(),
  });
}
