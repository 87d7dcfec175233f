import { queryOptions } from "@tanstack/react-query";

import { request } from "@/api/client";
import type { Deletion, DeletionPreview, Page } from "@/api/types";

export type Collection = "jobs" | "artifacts" | "checkpoints" | "datasets" | "projects" | "teams";

export const deletionsKey = ["deletions"] as const;

export function deletionPreviewQuery(collection: Collection, id: string) {
  return queryOptions({
    queryKey: [...deletionsKey, "preview", collection, id] as const,
    queryFn: ({ signal }) =>
      request<DeletionPreview>(`/${collection}/${encodeURIComponent(id)}/deletion`, { signal }),
    staleTime: 0,
  });
}

export function deletionsQuery() {
  return queryOptions({
    queryKey: [...deletionsKey, "list"] as const,
    queryFn: ({ signal }) => request<Page<Deletion>>("/deletions", { query: { limit: 50 }, signal }),
  });
}

export function deleteStored(collection: Collection, id: string): Promise<Deletion> {
  return request<Deletion>(`/${collection}/${encodeURIComponent(id)}`, { method: "DELETE" });
}

/** Where the certificate of an erased team is. */
export function certificateAddress(id: string): string {
  return `/api/v1/deletions/${encodeURIComponent(id)}/certificate`;
}

export function restoreDeletion(id: string): Promise<Deletion> {
  return request<Deletion>(`/deletions/${encodeURIComponent(id)}:restore`, { method: "POST" });
}
