import { offlineProblem, problemFrom } from "@/api/problem";
import { forgetRetryKey, identityOf, retryKey } from "@/api/retry-key";

/** Where the API lives, on the dashboard's own origin: the session cookie is all the authentication there is. */
export const API = "/api/v1";

const SAFE = new Set(["GET", "HEAD"]);

export interface RequestOptions {
  method?: "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
  query?: Record<string, string | number | null | undefined>;
  json?: unknown;
  body?: Blob;
  headers?: Record<string, string>;
  signal?: AbortSignal;
}

/** Django renews the cookie at sign-in, so it is read for each request and not cached. */
function csrfToken(): string {
  const match = /(?:^|;\s*)csrftoken=([^;]+)/.exec(document.cookie);
  return match?.[1] ? decodeURIComponent(match[1]) : fallbackToken;
}

// A server may make its CSRF cookie unreadable to scripts; /session then is where the token comes from.
let fallbackToken = "";

export function rememberCsrfToken(token: string): void {
  fallbackToken = token;
}

export function address(path: string, query: RequestOptions["query"] = {}): string {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "") search.set(name, String(value));
  }
  const text = search.toString();
  return `${API}${path}${text ? `?${text}` : ""}`;
}

/** The answer of one call; throws `Problem` for every other outcome. */
export async function send(path: string, options: RequestOptions = {}): Promise<Response> {
  const method = options.method ?? "GET";
  const headers: Record<string, string> = {
    Accept: "application/json, application/problem+json",
    ...options.headers,
  };
  const init: RequestInit = { method, headers, credentials: "same-origin" };
  if (options.signal) init.signal = options.signal;
  if (options.json !== undefined) {
    headers["Content-Type"] = "application/json";
    init.body = JSON.stringify(options.json);
  } else if (options.body) {
    init.body = options.body;
  }
  if (!SAFE.has(method)) headers["X-CSRFToken"] = csrfToken();
  const url = address(path, options.query);
  const identity = method === "POST" && !path.startsWith("/session") ? identityOf(url, options.json, options.body) : "";
  if (identity) headers["Idempotency-Key"] ??= retryKey(identity);
  let response: Response;
  try {
    response = await fetch(url, init);
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw offlineProblem();
  }
  if (identity) forgetRetryKey(identity, response.status);
  if (!response.ok) throw await problemFrom(response);
  return response;
}

export async function request<T>(path: string, options: RequestOptions = {}): Promise<T> {
  const response = await send(path, options);
  if (response.status === 204) return undefined as T;
  return (await response.json()) as T;
}
