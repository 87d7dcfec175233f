import { infiniteQueryOptions, queryOptions } from "@tanstack/react-query";

import { request, send } from "@/api/client";
import type {
  ActedNode,
  Cluster,
  ClusterCheck,
  ClusterKind,
  ClusterNode,
  ClusterHealthCheck,
  FullCluster,
  JsonObject,
  NodeIncident,
  NodePreflight,
  Page,
  Pool,
  PoolChange,
  QueuedAttempt,
} from "@/api/types";

const POLL_MS = 10_000;
const QUEUE_MS = 5_000;
const PREFLIGHT_MS = 2_000;

export const clusterKeys = {
  all: ["clusters"] as const,
  list: ["clusters", "list"] as const,
  kinds: ["clusters", "kinds"] as const,
  one: (id: string) => ["clusters", "one", id] as const,
  nodes: (id: string) => ["clusters", "nodes", id] as const,
  incidents: (id: string, node: string) => ["clusters", "incidents", id, node] as const,
  preflights: (id: string, node: string) => ["clusters", "preflights", id, node] as const,
  probes: (id: string) => ["clusters", "probes", id] as const,
  queue: (id: string) => ["clusters", "queue", id] as const,
};

const one = (id: string) => `/clusters/${encodeURIComponent(id)}`;
const ofNode = (id: string, node: string) => `${one(id)}/nodes/${encodeURIComponent(node)}`;

export function clustersQuery() {
  return queryOptions({
    queryKey: clusterKeys.list,
    queryFn: ({ signal }) => request<Page<Cluster>>("/clusters", { signal }),
    refetchInterval: POLL_MS,
  });
}

/** `tag` is what a change says it is based on. */
export interface ReadCluster {
  cluster: FullCluster;
  tag: string;
}

async function readCluster(response: Response): Promise<ReadCluster> {
  return { cluster: (await response.json()) as FullCluster, tag: response.headers.get("ETag") ?? "" };
}

export function clusterQuery(id: string) {
  return queryOptions({
    queryKey: clusterKeys.one(id),
    queryFn: async ({ signal }) => readCluster(await send(one(id), { signal })),
    refetchInterval: POLL_MS,
  });
}

export function kindsQuery() {
  return queryOptions({
    queryKey: clusterKeys.kinds,
    queryFn: ({ signal }) => request<Page<ClusterKind>>("/clusters:kinds", { signal }),
    staleTime: 3_600_000,
  });
}

export interface NodeFilters {
  q: string;
  state: string;
}

export function nodesQuery(id: string, filters: NodeFilters) {
  return infiniteQueryOptions({
    queryKey: [...clusterKeys.nodes(id), filters],
    queryFn: ({ pageParam, signal }) =>
      request<Page<ClusterNode>>(`${one(id)}/nodes`, {
        query: { ...filters, limit: 200, cursor: pageParam },
        signal,
      }),
    initialPageParam: "",
    getNextPageParam: (page) => page.next_cursor,
    refetchInterval: POLL_MS,
  });
}

export function incidentsQuery(id: string, node: string) {
  return queryOptions({
    queryKey: clusterKeys.incidents(id, node),
    queryFn: ({ signal }) => request<Page<NodeIncident>>(`${ofNode(id, node)}/incidents`, { signal }),
  });
}

/** Read often while one is running. */
export function nodePreflightsQuery(id: string, node: string) {
  return queryOptions({
    queryKey: clusterKeys.preflights(id, node),
    queryFn: ({ signal }) => request<Page<NodePreflight>>(`${ofNode(id, node)}/preflights`, { signal }),
    refetchInterval: ({ state }) => (state.data?.items.some((each) => each.outcome === "") ? PREFLIGHT_MS : POLL_MS),
  });
}

export function startPreflight(id: string, node: string): Promise<NodePreflight> {
  return request<NodePreflight>(`${ofNode(id, node)}:preflight`, { method: "POST" });
}

export function healthChecksQuery(id: string) {
  return queryOptions({
    queryKey: clusterKeys.probes(id),
    queryFn: ({ signal }) => request<Page<ClusterHealthCheck>>(`${one(id)}/probes`, { signal }),
    refetchInterval: POLL_MS,
  });
}

export function queueQuery(id: string) {
  return queryOptions({
    queryKey: clusterKeys.queue(id),
    queryFn: ({ signal }) => request<Page<QueuedAttempt>>(`${one(id)}/queue`, { signal }),
    refetchInterval: QUEUE_MS,
  });
}

export interface NewCluster {
  name: string;
  kind: string;
  config: JsonObject;
}

export function registerCluster(cluster: NewCluster): Promise<FullCluster> {
  return request<FullCluster>("/clusters", { method: "POST", json: cluster });
}

/** With a name, the server's own part of that cluster's configuration applies. */
export function checkConfig(name: string, kind: string, config: JsonObject): Promise<ClusterCheck> {
  const named = name === "" ? {} : { name };
  return request<ClusterCheck>("/clusters:check", { method: "POST", json: { ...named, kind, config } });
}

export interface ClusterChanges {
  config?: JsonObject;
  enabled?: boolean;
  preflight_after_incidents?: boolean;
  preflight_every_hours?: number | null;
}

export async function changeCluster(
  id: string,
  changes: ClusterChanges,
  tag: string,
): Promise<ReadCluster> {
  return readCluster(await send(one(id), { method: "PATCH", json: changes, headers: { "If-Match": tag } }));
}

export function checkHealth(id: string): Promise<ClusterHealthCheck> {
  return request<ClusterHealthCheck>(`${one(id)}:probe`, { method: "POST" });
}

export function syncTeams(id: string): Promise<{ changes: string[] }> {
  return request(`${one(id)}:sync_teams`, { method: "POST" });
}

export function putPool(id: string, name: string, facts: PoolChange): Promise<Pool> {
  return request<Pool>(`${one(id)}/pools/${encodeURIComponent(name)}`, { method: "PUT", json: facts });
}

export function removePool(id: string, name: string): Promise<void> {
  return request(`${one(id)}/pools/${encodeURIComponent(name)}`, { method: "DELETE" });
}

export type NodeAct = "drain" | "undrain" | "quarantine" | "release";

export function actOnNode(id: string, node: string, act: NodeAct, reason: string): Promise<ActedNode> {
  const json = act === "drain" || act === "quarantine" ? { reason } : {};
  return request<ActedNode>(`${ofNode(id, node)}:${act}`, { method: "POST", json });
}
