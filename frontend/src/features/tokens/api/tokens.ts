import { queryOptions } from "@tanstack/react-query";

import { request } from "@/api/client";
import type { ApiToken, NewToken, Page, TokenRequest } from "@/api/types";

export const tokensKey = ["tokens"] as const;

export function tokensQuery() {
  return queryOptions({
    queryKey: tokensKey,
    queryFn: ({ signal }) => request<Page<ApiToken>>("/tokens", { query: { limit: 200 }, signal }),
  });
}

/** The only answer that carries the token itself. */
export function createToken(token: TokenRequest): Promise<NewToken> {
  return request<NewToken>("/tokens", { method: "POST", json: token });
}

/** A successor with the same name and scopes; the old token works for another hour. */
export function rotateToken(id: string): Promise<NewToken> {
  return request<NewToken>(`/tokens/${encodeURIComponent(id)}:rotate`, { method: "POST", json: {} });
}

/** All of the signed-in user's, in all teams. */
export function revokeAllTokens(): Promise<{ revoked: number }> {
  return request("/tokens:revoke-all", { method: "POST" });
}

export function revokeToken(id: string): Promise<void> {
  return request(`/tokens/${encodeURIComponent(id)}`, { method: "DELETE" });
}
