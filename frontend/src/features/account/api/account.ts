import type { QueryClient } from "@tanstack/react-query";
import { queryOptions } from "@tanstack/react-query";

import { request } from "@/api/client";
import { sessionKey } from "@/api/session";
import type { AppSetup, Page, Passkey, RecoveryCodes, SecondFactors, SignIn } from "@/api/types";
import type { PasskeyOptions } from "@/lib/passkeys";
import { createPasskey } from "@/lib/passkeys";

export const signInsKey = ["sessions"] as const;

export function signInsQuery() {
  return queryOptions({
    queryKey: signInsKey,
    queryFn: ({ signal }) => request<Page<SignIn>>("/sessions", { signal }),
  });
}

export function endSignIn(id: string): Promise<void> {
  return request(`/sessions/${encodeURIComponent(id)}`, { method: "DELETE" });
}

export function endOtherSignIns(): Promise<{ ended: number }> {
  return request("/sessions:end-others", { method: "POST" });
}

export const secondFactorsKey = ["second-factors"] as const;

export function secondFactorsQuery() {
  return queryOptions({
    queryKey: secondFactorsKey,
    queryFn: ({ signal }) => request<SecondFactors>("/second-factors", { signal }),
  });
}

/** After a change: other sessions have ended, and a demanded second factor may be there now. */
export async function refreshSecondFactors(client: QueryClient): Promise<void> {
  await Promise.all(
    [secondFactorsKey, signInsKey, sessionKey].map((queryKey) => client.invalidateQueries({ queryKey })),
  );
}

function confirmed<T>(path: string, password: string): Promise<T> {
  return request(`/second-factors/${path}`, { method: "POST", json: { current_password: password } });
}

export function beginApp(password: string): Promise<AppSetup> {
  return confirmed("authenticator-app:begin", password);
}

export function confirmApp(code: string): Promise<RecoveryCodes> {
  return request("/second-factors/authenticator-app:confirm", { method: "POST", json: { code } });
}

export function removeApp(password: string): Promise<void> {
  return confirmed("authenticator-app:remove", password);
}

export function newRecoveryCodes(password: string): Promise<RecoveryCodes> {
  return confirmed("recovery-codes:generate", password);
}

/** Asks the browser for a new passkey and registers it. */
export async function addPasskey(name: string, password: string): Promise<RecoveryCodes> {
  const options = await confirmed<PasskeyOptions>("passkeys:begin", password);
  const credential = await createPasskey(options);
  return request("/second-factors/passkeys", { method: "POST", json: { name, credential } });
}

export function renamePasskey(id: string, name: string): Promise<Passkey> {
  return request(`/second-factors/passkeys/${encodeURIComponent(id)}`, { method: "PATCH", json: { name } });
}

export function removePasskey(id: string, password: string): Promise<void> {
  return confirmed(`passkeys/${encodeURIComponent(id)}:remove`, password);
}

export function changePassword(current: string, next: string): Promise<void> {
  return request("/session:change-password", {
    method: "POST",
    json: { current_password: current, new_password: next },
  });
}
