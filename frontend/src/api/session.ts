import { queryOptions } from "@tanstack/react-query";

import { rememberCsrfToken, request } from "@/api/client";
import type { Session } from "@/api/types";

export const sessionKey = ["session"] as const;

async function readSession(signal: AbortSignal): Promise<Session> {
  const session = await request<Session>("/session", { signal });
  rememberCsrfToken(session.csrf_token);
  return session;
}

export function sessionQuery() {
  return queryOptions({
    queryKey: sessionKey,
    queryFn: ({ signal }) => readSession(signal),
    staleTime: 60_000,
  });
}

export async function signIn(credentials: { username: string; password: string }): Promise<Session> {
  const session = await request<Session>("/session", { method: "POST", json: credentials });
  rememberCsrfToken(session.csrf_token);
  return session;
}

/** Makes the signed-in user a member; with `account` a new one. */
export async function acceptInvitation(
  token: string,
  account: { username: string; password: string } | null,
): Promise<void> {
  await request("/invitations:accept", { method: "POST", json: { token, ...account } });
}

export async function signOut(): Promise<void> {
  await request("/session", { method: "DELETE" });
}

/** Sets a new password by the token of a link; afterwards one signs in with it. */
export async function resetPassword(token: string, password: string): Promise<void> {
  rememberCsrfToken((await request<Session>("/session")).csrf_token);
  await request("/session:reset-password", { method: "POST", json: { token, new_password: password } });
}
