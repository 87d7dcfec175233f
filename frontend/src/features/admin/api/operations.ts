import { queryOptions } from "@tanstack/react-query";

import { request } from "@/api/client";
import type {
  AdmissionDecision,
  DecisionReplay,
  LostAttempt,
  LostObject,
  Orphans,
  Page,
  Seen,
  Reconciler,
} from "@/api/types";

const POLL_MS = 5_000;

export function reconcilersQuery() {
  return queryOptions({
    queryKey: ["admin", "reconcilers"],
    queryFn: ({ signal }) => request<Page<Reconciler>>("/admin/sweepers", { signal }),
    refetchInterval: POLL_MS,
  });
}

export const orphansKey = ["admin", "orphans"] as const;

/** Asks every cluster, so it is asked when somebody looks and not again and again. */
export function orphansQuery() {
  return queryOptions({
    queryKey: orphansKey,
    queryFn: ({ signal }) => request<Orphans>("/admin/orphans", { signal }),
  });
}

export function cancelObject({ cluster_id, backend_name }: LostObject): Promise<unknown> {
  return request("/admin/orphans:cancel", { method: "POST", json: { cluster_id, backend_name } });
}

export function observeAttempt({ attempt_id }: LostAttempt): Promise<Seen> {
  return request<Seen>("/admin/orphans:observe", { method: "POST", json: { attempt_id } });
}

export function decisionsQuery() {
  return queryOptions({
    queryKey: ["admin", "decisions"],
    queryFn: ({ signal }) => request<Page<AdmissionDecision>>("/admin/decisions?limit=20", { signal }),
    refetchInterval: POLL_MS,
  });
}

/** Decides again from what was stored. */
export function replayDecision(id: number): Promise<DecisionReplay> {
  return request<DecisionReplay>(`/admin/decisions/${id}:replay`, { method: "POST" });
}
