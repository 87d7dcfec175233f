import type { FieldProblem } from "@/api/types";

/** What the server refused, as RFC 9457 describes it, or a request that the browser could not send (`code: "offline"`). */
export class Problem extends Error {
  readonly status: number;
  readonly code: string;
  readonly remedy: string | null;
  readonly requestId: string | null;
  readonly fields: FieldProblem[];

  constructor(parts: {
    status: number;
    code: string;
    message: string;
    remedy?: string | null;
    requestId?: string | null;
    fields?: FieldProblem[];
  }) {
    super(parts.message);
    this.name = "Problem";
    this.status = parts.status;
    this.code = parts.code;
    this.remedy = parts.remedy ?? null;
    this.requestId = parts.requestId ?? null;
    this.fields = parts.fields ?? [];
  }
}

/** What the server refused about the field at `pointer` of a request's body, or below it. */
export function errorAt(error: unknown, pointer: string): string | undefined {
  if (!(error instanceof Problem)) return undefined;
  return error.fields.find((field) => `${field.pointer}/`.startsWith(`${pointer}/`))?.detail;
}

function text(value: unknown): string | null {
  return typeof value === "string" && value !== "" ? value : null;
}

function fieldProblems(value: unknown): FieldProblem[] {
  if (!Array.isArray(value)) return [];
  return value.map((entry: Record<string, unknown>) => ({
    pointer: text(entry.pointer) ?? "",
    code: text(entry.code) ?? "invalid",
    detail: text(entry.detail) ?? "This value is not accepted.",
  }));
}

/** A proxy may answer with HTML, or nothing at all: then the status says what there is to say. */
export async function problemFrom(response: Response): Promise<Problem> {
  let body: Record<string, unknown> = {};
  if ((response.headers.get("Content-Type") ?? "").includes("json")) {
    const parsed: unknown = await response.json().catch(() => null);
    if (parsed !== null && typeof parsed === "object") body = parsed as Record<string, unknown>;
  }
  return new Problem({
    status: response.status,
    code: text(body.code) ?? `http_${response.status}`,
    message: text(body.detail) ?? text(body.title) ?? `The server answered ${response.status}.`,
    remedy: text(body.remedy),
    requestId: text(body.request_id) ?? response.headers.get("X-Request-ID"),
    fields: fieldProblems(body.errors),
  });
}

export function offlineProblem(): Problem {
  return new Problem({
    status: 0,
    code: "offline",
    message: "The server does not answer.",
    remedy: "Check the connection and that the stack is up; this page retries.",
  });
}
