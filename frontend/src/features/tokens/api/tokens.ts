import { queryOptions } from "@tanstack/react-query";

import { request } from "@/api/client";
import type { ApiToken, Page } from "@/api/types";

export const tokensKey = ["tokens"] as const;

export function tokensQuery() {
  return queryOptions({
    queryKey: tokensKey,
    queryFn: ({ signal }) => request<Page<ApiToken>>("/tokens", { query: { limit: 200 }, signal }),
  });
}

export interface NewToken {
  name: string;
  team: string;
  expires_in_days?: number;
}

/** The only answer that carries the token itself. */
export type CreatedToken = ApiToken & { token: string };

export function createToken(token: NewToken): Promise<CreatedToken> {
  return request<CreatedToken>("/tokens", { method: "POST", json: token });
}

export function revokeToken(id: string): Promise<void> {
  return request(`/tokens/${encodeURIComponent(id)}`, { method: "DELETE" });
}
