import { infiniteQueryOptions, queryOptions } from "@tanstack/react-query";

import { request } from "@/api/client";
import type { Delivery, FullDelivery, MadeWebhook, NewWebhook, Page, Webhook, WebhookChanges } from "@/api/types";

export const webhookKeys = {
  all: ["webhooks"] as const,
  list: ["webhooks", "list"] as const,
  deliveries: (id: string) => ["webhooks", "deliveries", id] as const,
  delivery: (id: string) => ["webhooks", "delivery", id] as const,
};

const LIST_MS = 15_000;
const WAITING_MS = 2_000;
const QUIET_MS = 10_000;
const PER_PAGE = 25;

const one = (id: string) => `/webhooks/${encodeURIComponent(id)}`;

export function webhooksQuery() {
  return queryOptions({
    queryKey: webhookKeys.list,
    queryFn: ({ signal }) => request<Page<Webhook>>("/webhooks", { signal }),
    refetchInterval: LIST_MS,
  });
}

/** Asked again soon while the newest ones still wait for their first try, as after a test. */
export function deliveriesQuery(id: string) {
  return infiniteQueryOptions({
    queryKey: webhookKeys.deliveries(id),
    queryFn: ({ pageParam, signal }) =>
      request<Page<Delivery>>(`${one(id)}/deliveries`, { query: { limit: PER_PAGE, cursor: pageParam }, signal }),
    initialPageParam: "",
    getNextPageParam: (page) => page.next_cursor,
    refetchInterval: (query) => {
      const newest = query.state.data?.pages[0]?.items ?? [];
      return newest.some((delivery) => delivery.state === "pending") ? WAITING_MS : QUIET_MS;
    },
  });
}

export function deliveryQuery(id: string) {
  return queryOptions({
    queryKey: webhookKeys.delivery(id),
    queryFn: ({ signal }) => request<FullDelivery>(`/deliveries/${encodeURIComponent(id)}`, { signal }),
  });
}

/** This answer and the next one alone carry a secret. */
export function createWebhook(webhook: NewWebhook): Promise<MadeWebhook> {
  return request<MadeWebhook>("/webhooks", { method: "POST", json: webhook });
}

export function rotateSecret(id: string): Promise<MadeWebhook> {
  return request<MadeWebhook>(`${one(id)}:rotate_secret`, { method: "POST", json: {} });
}

export function changeWebhook(id: string, changes: WebhookChanges): Promise<Webhook> {
  return request<Webhook>(one(id), { method: "PATCH", json: changes });
}

export function deleteWebhook(id: string): Promise<void> {
  return request(one(id), { method: "DELETE" });
}

export function testWebhook(id: string): Promise<Delivery> {
  return request<Delivery>(`${one(id)}:test`, { method: "POST", json: {} });
}

export function redeliver(id: string): Promise<Delivery> {
  return request<Delivery>(`/deliveries/${encodeURIComponent(id)}:redeliver`, { method: "POST", json: {} });
}
