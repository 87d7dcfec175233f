import { MutationCache, QueryCache, QueryClient } from "@tanstack/react-query";

import { Problem } from "@/api/problem";
import { sessionKey } from "@/api/session";

const RETRIES = 3;

/** Only what may pass by itself is asked again: no answer, an overloaded or a restarting server. */
function retry(failures: number, error: Error): boolean {
  const passing = error instanceof Problem && (error.status === 0 || error.status >= 500);
  return passing && failures < RETRIES;
}

/** A session that ended elsewhere shows as a refused call: asking for the session leads to the sign-in page. */
function noticeEndedSession(error: Error): void {
  const ended = error instanceof Problem && (error.status === 401 || error.code === "not_authenticated");
  if (ended && error.code !== "invalid_credentials") {
    void queryClient.invalidateQueries({ queryKey: sessionKey });
  }
}

export const queryClient: QueryClient = new QueryClient({
  queryCache: new QueryCache({ onError: noticeEndedSession }),
  mutationCache: new MutationCache({ onError: noticeEndedSession }),
  // The server is often on this very machine: being offline is no reason not to ask it.
  defaultOptions: {
    queries: { retry, networkMode: "always", staleTime: 1_000 },
    mutations: { networkMode: "always" },
  },
});
