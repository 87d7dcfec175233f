import { infiniteQueryOptions, keepPreviousData } from "@tanstack/react-query";

import { address, request } from "@/api/client";
import type { AuditEvent, Page } from "@/api/types";

export interface AuditFilters {
  actor: string;
  action: string;
  target: string;
}

export function auditQuery(filters: AuditFilters) {
  return infiniteQueryOptions({
    queryKey: ["audit", filters] as const,
    queryFn: ({ pageParam, signal }) =>
      request<Page<AuditEvent>>("/audit", { query: { ...filters, limit: 100, cursor: pageParam }, signal }),
    initialPageParam: null as string | null,
    getNextPageParam: (page) => page.next_cursor,
    placeholderData: keepPreviousData,
  });
}

export function exportAddress(filters: AuditFilters): string {
  return address("/audit:export", { ...filters });
}
