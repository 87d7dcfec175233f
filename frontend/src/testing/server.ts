import { vi } from "vitest";

import type { paths } from "@/api/schema.gen";
import type { FieldProblem } from "@/api/types";

type Method = "get" | "post" | "put" | "patch" | "delete";
type Prefix = "/api/v1";
type Success = 200 | 201 | 202;

/** The document of an operation's success, as the OpenAPI document has it. */
type DocumentOf<Operation> = Operation extends { responses: infer Responses }
  ? {
      [Status in keyof Responses]: Status extends Success
        ? Responses[Status] extends { content: { "application/json": infer Document } }
          ? Document
          : null
        : Status extends 204
          ? null
          : never;
    }[keyof Responses]
  : never;

type RouteOf<Path extends keyof paths> = Path extends `${Prefix}${infer Rest}`
  ? {
      [M in Method]: paths[Path] extends Record<M, { responses: unknown }> ? `${Uppercase<M>} ${Rest}` : never;
    }[Method]
  : never;

/** "GET /jobs/{job_id}": an operation of the API. */
export type Route = { [Path in keyof paths]: RouteOf<Path> }[keyof paths];

type DocumentAt<R extends Route> = R extends `${infer M} ${infer Path}`
  ? `${Prefix}${Path}` extends keyof paths
    ? Lowercase<M> extends keyof paths[`${Prefix}${Path}`]
      ? DocumentOf<paths[`${Prefix}${Path}`][Lowercase<M>]>
      : never
    : never
  : never;

export interface Call {
  path: string;
  query: Record<string, string>;
  headers: Headers;
  json: unknown;
}

class Reply<D = never> {
  /** Of the document inside, for the type check only. */
  declare readonly document: D;

  constructor(readonly make: () => Response) {}
}

type Plain<D> = D | Reply<D>;
export type Answer<D> = Plain<D> | Promise<Plain<D>> | ((call: Call) => Plain<D> | Promise<Plain<D>>);

interface Handler {
  route: string;
  pattern: RegExp;
  answers: Answer<unknown>[];
  calls: Call[];
}

interface ProblemParts {
  code: string;
  detail?: string;
  title?: string;
  remedy?: string;
  request_id?: string;
  errors?: FieldProblem[];
}

/** Answer with a problem document (RFC 9457). */
export function refuse(status: number, parts: ProblemParts, headers: Record<string, string> = {}): Reply {
  const body = JSON.stringify({ status, ...parts });
  return new Reply(() => new Response(body, { status, headers: { "Content-Type": "application/problem+json", ...headers } }));
}

/** Answer with a document and response headers, such as an `ETag`. */
export function withHeaders<D>(document: D, headers: Record<string, string>): Reply<D> {
  return new Reply<D>(() => Response.json(document, { headers }));
}

/** Answer with something that is no API document, as a proxy does. */
export function raw(status: number, body: string, headers: Record<string, string>): Reply {
  return new Reply(() => new Response(body, { status, headers }));
}

/** Cut the connection before an answer comes. */
export function cut(): Reply {
  return new Reply(() => {
    throw new TypeError("Failed to fetch");
  });
}

/** An answer that comes when the test releases it. */
export function held<D>(): { answer: Promise<Plain<D>>; release: (document: Plain<D>) => void } {
  let release: (document: Plain<D>) => void = () => undefined;
  const answer = new Promise<Plain<D>>((resolve) => {
    release = resolve;
  });
  return { answer, release };
}

function patternOf(path: string): RegExp {
  const escaped = path.replace(/[.*+?^$()|[\]\\]/g, "\\$&").replace(/\{\w+\}/g, "[^/:]+");
  return new RegExp(`^/api/v1${escaped}$`);
}

/** The API at the network boundary: `fetch` answers each named operation; any other request fails the test. */
class Server {
  private handlers: Handler[] = [];
  private unexpected: string[] = [];

  start(): void {
    this.handlers = [];
    this.unexpected = [];
    vi.stubGlobal("fetch", (url: string, init: RequestInit = {}) => this.respond(url, init));
  }

  /** Throw if a request came that no test named. */
  stop(): void {
    const missing = this.unexpected;
    this.unexpected = [];
    if (missing.length > 0) throw new Error(`requests without an answer: ${missing.join(", ")}`);
  }

  /** Give these answers in turn, the last one for each further request. Replaces earlier answers of the operation. */
  answer<R extends Route>(route: R, ...answers: Answer<DocumentAt<R>>[]): void {
    const path = route.slice(route.indexOf(" ") + 1);
    const known = this.handlers.find((each) => each.route === route);
    if (known) known.answers = answers;
    else this.handlers.push({ route, pattern: patternOf(path), answers: answers, calls: [] });
  }

  calls(route: Route): Call[] {
    return this.handlers.find((each) => each.route === route)?.calls ?? [];
  }

  private async respond(url: string, init: RequestInit): Promise<Response> {
    const method = init.method ?? "GET";
    const { pathname, searchParams } = new URL(url, "http://localhost");
    const handler = this.handlers.find(
      ({ route, pattern }) => route.startsWith(`${method} `) && pattern.test(decodeURIComponent(pathname)),
    );
    if (handler === undefined) {
      this.unexpected.push(`${method} ${url}`);
      throw new TypeError(`no answer for ${method} ${url}`);
    }
    const call: Call = {
      path: pathname,
      query: Object.fromEntries(searchParams),
      headers: new Headers(init.headers),
      json: typeof init.body === "string" ? (JSON.parse(init.body) as unknown) : undefined,
    };
    handler.calls.push(call);
    const next = handler.answers.length > 1 ? handler.answers.shift() : handler.answers[0];
    const given: unknown = await (typeof next === "function" ? (next as (call: Call) => unknown)(call) : next);
    if (given instanceof Reply) return given.make();
    return given === null ? new Response(null, { status: 204 }) : Response.json(given);
  }
}

export const server = new Server();
