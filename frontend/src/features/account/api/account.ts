import { queryOptions } from "@tanstack/react-query";

import { request } from "@/api/client";
import type { Page, SignIn } from "@/api/types";

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

export function changePassword(current: string, next: string): Promise<void> {
  return request("/session:change-password", {
    method: "POST",
    json: { current_password: current, new_password: next },
  });
}
