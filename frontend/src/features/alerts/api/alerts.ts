import { queryOptions } from "@tanstack/react-query";

import { request } from "@/api/client";
import type {
  Alert,
  AlertRule,
  AlertRuleChanges,
  NewAlertRule,
  Notification,
  NotificationPreferenceChanges,
  NotificationPreferences,
  Page,
} from "@/api/types";

export const alertKeys = {
  all: ["alerts"] as const,
  rules: ["alerts", "rules"] as const,
  list: ["alerts", "list"] as const,
  inbox: ["alerts", "inbox"] as const,
  unread: ["alerts", "unread"] as const,
  preferences: ["alerts", "preferences"] as const,
};

const POLL_MS = 15_000;
const UNREAD_MS = 60_000;
const SHOWN = 50;

const rule = (id: string) => `/alert-rules/${encodeURIComponent(id)}`;

export function rulesQuery() {
  return queryOptions({
    queryKey: alertKeys.rules,
    queryFn: ({ signal }) => request<Page<AlertRule>>("/alert-rules", { signal }),
    refetchInterval: POLL_MS,
  });
}

/** The newest alerts of the user's teams. */
export function alertsQuery() {
  return queryOptions({
    queryKey: alertKeys.list,
    queryFn: ({ signal }) => request<Page<Alert>>("/alerts", { query: { limit: SHOWN }, signal }),
    refetchInterval: POLL_MS,
  });
}

/** The newest notifications of the user. */
export function inboxQuery() {
  return queryOptions({
    queryKey: alertKeys.inbox,
    queryFn: ({ signal }) => request<Page<Notification>>("/notifications", { query: { limit: SHOWN }, signal }),
    refetchInterval: POLL_MS,
  });
}

export function unreadQuery() {
  return queryOptions({
    queryKey: alertKeys.unread,
    queryFn: ({ signal }) => request<{ unread: number }>("/notifications:unread", { signal }),
    refetchInterval: UNREAD_MS,
  });
}

export function preferencesQuery() {
  return queryOptions({
    queryKey: alertKeys.preferences,
    queryFn: ({ signal }) => request<NotificationPreferences>("/notification-preferences", { signal }),
  });
}

export function createRule(made: Omit<NewAlertRule, "window" | "enabled" | "labels">): Promise<AlertRule> {
  return request<AlertRule>("/alert-rules", { method: "POST", json: made });
}

export function changeRule(id: string, changes: AlertRuleChanges): Promise<AlertRule> {
  return request<AlertRule>(rule(id), { method: "PATCH", json: changes });
}

export function deleteRule(id: string): Promise<void> {
  return request(rule(id), { method: "DELETE" });
}

/** Without ids, all notifications. */
export function markRead(ids?: string[]): Promise<{ unread: number }> {
  return request<{ unread: number }>("/notifications:read", { method: "POST", json: ids ? { ids } : {} });
}

export function changePreferences(changes: NotificationPreferenceChanges): Promise<NotificationPreferences> {
  return request<NotificationPreferences>("/notification-preferences", { method: "PATCH", json: changes });
}
