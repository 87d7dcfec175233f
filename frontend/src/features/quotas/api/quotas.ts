import { queryOptions } from "@tanstack/react-query";

import { request, send } from "@/api/client";
import type { AdmissionSettings, NodeChange, QuotaPreview, Quotas, QuotaUsage } from "@/api/types";

const POLL_MS = 10_000;
const USAGE_MS = 60_000;

export const quotaKeys = {
  all: ["quotas"] as const,
  tree: ["quotas", "tree"] as const,
  usage: (days: number) => ["quotas", "usage", days] as const,
  settings: ["quotas", "settings"] as const,
};

/** `tag` is what a change says it is based on. */
export interface Read<T> {
  value: T;
  tag: string;
}

async function read<T>(path: string, signal: AbortSignal): Promise<Read<T>> {
  const response = await send(path, { signal });
  return { value: (await response.json()) as T, tag: response.headers.get("ETag") ?? "" };
}

export function quotasQuery() {
  return queryOptions({
    queryKey: quotaKeys.tree,
    queryFn: ({ signal }) => read<Quotas>("/quotas", signal),
    refetchInterval: POLL_MS,
  });
}

export function usageQuery(days: number) {
  return queryOptions({
    queryKey: quotaKeys.usage(days),
    queryFn: ({ signal }) => request<QuotaUsage>("/quotas/usage", { query: { days }, signal }),
    refetchInterval: USAGE_MS,
  });
}

export function settingsQuery() {
  return queryOptions({
    queryKey: quotaKeys.settings,
    queryFn: ({ signal }) => read<AdmissionSettings>("/quotas/settings", signal),
  });
}

export function previewQuotas(changes: NodeChange[]): Promise<QuotaPreview> {
  return request<QuotaPreview>("/quotas:preview", { method: "POST", json: { changes } });
}

/** Refused when the tree has changed since `version` of it was read. */
export function changeQuotas(changes: NodeChange[], version: number): Promise<Quotas> {
  return request<Quotas>("/quotas", {
    method: "PATCH",
    json: { changes },
    headers: { "If-Match": `W/"${version}-"` },
  });
}

export function changeSettings(settings: AdmissionSettings, tag: string): Promise<AdmissionSettings> {
  return request<AdmissionSettings>("/quotas/settings", { method: "PUT", json: settings, headers: { "If-Match": tag } });
}
