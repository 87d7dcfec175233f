import { queryOptions } from "@tanstack/react-query";

import { rememberCsrfToken, request } from "@/api/client";
import type { Session } from "@/api/types";
import type { PasskeyJson, PasskeyOptions } from "@/lib/passkeys";
import { getPasskey } from "@/lib/passkeys";

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

/** The second step of a sign-in: a code of the authenticator app, or a recovery code. */
export async function sendCode(code: string): Promise<Session> {
  return secondFactor({ code });
}

/** The second step of a sign-in by a passkey of this device. */
export async function sendPasskey(): Promise<Session> {
  const options = await request<PasskeyOptions>("/session:passkey-challenge", { method: "POST" });
  return secondFactor({ passkey: await getPasskey(options) });
}

async function secondFactor(json: { code: string } | { passkey: PasskeyJson }): Promise<Session> {
  const session = await request<Session>("/session:second-factor", { method: "POST", json });
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
