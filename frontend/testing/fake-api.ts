import type { IncomingMessage } from "node:http";

import type { Plugin } from "vite";

import type { ApiToken, Dataset, FieldProblem, JsonObject } from "@/api/types";
import { artifactsOf, checkpointsOf, eventsOf, jobOf, logOf, metricsOf, status } from "./fake-jobs";
import type { FakeRun } from "./fake-jobs";
import { PRESETS } from "./fake-presets";

/** `/api/v1` from memory, for `ATHANOR_FAKE_API=1 npm run dev` only: a look at pages, never a test of behaviour. */

interface Reply {
  status?: number;
  body?: unknown;
}

const now = Date.now();
const firstSpec = PRESETS[0]?.spec ?? {};
const run = (id: string, name: string, agoSeconds: number, rest: Partial<FakeRun>): FakeRun => ({
  id: `job_01KAFAKE${id}`,
  name,
  born: now - agoSeconds * 1000,
  steps: 300,
  stepSeconds: 0.6,
  fate: "succeeded",
  cancelledAt: null,
  spec: { ...firstSpec, name },
  ...rest,
});

const runs: FakeRun[] = [
  run("RUNNING001", "stdlib-1m-warm", 70, { steps: 900 }),
  run("WAITING002", "llama-8b-docs", 340, { fate: "waiting" }),
  run("DONE000003", "stdlib-1m", 1500, {}),
  run("FAILED0004", "stdlib-10m-wide", 4200, { fate: "failed" }),
  run("CANCEL0005", "ablation-no-decay", 9200, { cancelledAt: now - 9_130_000 }),
  ...Array.from({ length: 9 }, (_, index) =>
    run(`SWEEP000${index}`, `sweep-lr-${(index + 1) * 5}e-4`, 20_000 + index * 3_100, { steps: 200 }),
  ),
];
const tokens: ApiToken[] = [
  {
    id: "tok_1",
    name: "ci",
    prefix: "ath_9fK2",
    team: { id: "team_01", name: "demo" },
    created_at: new Date(now - 86_400_000 * 12).toISOString(),
    expires_at: new Date(now + 86_400_000 * 78).toISOString(),
    last_used_at: new Date(now - 240_000).toISOString(),
    revoked_at: null,
  },
];
const datasets: Dataset[] = [
  {
    id: "dset_1",
    team: { id: "team_01", name: "demo" },
    name: "handbook",
    status: "ready",
    size_bytes: 48_200_000,
    documents: 12_400,
    format: "jsonl",
    created_at: new Date(now - 86_400_000).toISOString(),
  },
];
let signedIn = true;

const session = () => ({
  authenticated: signedIn,
  user: signedIn ? { id: "user_1", username: "ada", email: "ada@example.org", is_staff: true } : null,
  teams: [{ id: "team_01", name: "demo", role: "owner" }],
  csrf_token: "fake",
});

const problem = (code: number, name: string, detail: string, errors: FieldProblem[] = []): Reply => ({
  status: code,
  body: { title: detail, status: code, code: name, detail, request_id: "req_fake", errors },
});

function planOf(spec: JsonObject): Reply {
  const training = spec.training as Record<string, number> | undefined;
  const steps = training?.steps;
  if (typeof steps !== "number" || steps < 1) {
    const detail = `steps is ${JSON.stringify(steps ?? null)}; give a whole number of at least 1`;
    return problem(422, "invalid_spec", "The spec is not valid.", [
      { pointer: "/training/steps", code: "invalid", detail },
    ]);
  }
  const processes = Number((spec.resources as Record<string, number> | undefined)?.processes_per_node ?? 1);
  const detail = `${processes} processes share 2 cores: steps take about ${processes / 2} times as long`;
  return {
    body: {
      resolved_spec: { priority: "normal", ...spec },
      warnings:
        processes > 2
          ? [{ pointer: "/resources/processes_per_node", code: "more_processes_than_cores", detail }]
          : [],
      estimate: {
        num_parameters: 1_050_000,
        memory_bytes_per_process: 412_000_000,
        pool_memory_bytes_per_process: 8_000_000_000,
        processes,
        slots: 2,
        tokens_total: steps * (training?.tokens_per_step ?? 8192),
        cost_currency: "EUR",
        cost_at_time_limit: 0,
      },
    },
  };
}

function jobPart(one: FakeRun, part: string, query: URLSearchParams): Reply {
  if (part === "metrics") return { body: metricsOf(one, Number(query.get("after_step") ?? -1)) };
  if (part === "events") {
    const after = Number(query.get("after") ?? 0);
    const items = eventsOf(one).filter((event) => event.seq > after);
    return { body: { items, next_after: items.at(-1)?.seq ?? null } };
  }
  if (part === "logs") {
    const after = query.get("after") ?? "";
    const grep = (query.get("grep") ?? "").toLowerCase();
    const rank = query.get("rank");
    const items = logOf(one)
      .filter((line) => line.cursor > after && line.text.toLowerCase().includes(grep))
      .filter((line) => !rank || String(line.rank) === rank)
      .slice(-Number(query.get("tail") ?? 500));
    return { body: { items, next_after: items.at(-1)?.cursor ?? null } };
  }
  const items = part === "checkpoints" ? checkpointsOf(one) : artifactsOf(one);
  return { body: { items, next_cursor: null } };
}

function answer(method: string, url: URL, body: JsonObject): Reply {
  const path = url.pathname.replace(/^\/api\/v1/, "");
  if (path === "/session") {
    if (method === "POST" && body.password !== "athanor") {
      return problem(401, "invalid_credentials", "Username or password is wrong.");
    }
    signedIn = method !== "DELETE" && (signedIn || method === "POST");
    return method === "DELETE" ? { status: 204 } : { body: session() };
  }
  if (!signedIn) return problem(401, "not_authenticated", "Sign in first.");
  if (path === "/presets") return { body: PRESETS };
  if (path === "/jobs:plan") return planOf(body);
  if (path === "/jobs" && method === "POST") {
    const plan = planOf(body);
    if (plan.status) return plan;
    const id = `NEW${String(runs.length).padStart(7, "0")}`;
    const steps = Number((body.training as Record<string, number> | undefined)?.steps);
    const made = run(id, String(body.name), 0, { spec: body, steps, born: Date.now() });
    runs.unshift(made);
    return { status: 201, body: jobOf(made) };
  }
  if (path === "/jobs") {
    const wanted = (url.searchParams.get("status") ?? "").split(",").filter(Boolean);
    const q = url.searchParams.get("q") ?? "";
    const items = runs.filter((one) => one.name.includes(q) && (!wanted.length || wanted.includes(status(one))));
    return { body: { items: items.map(jobOf), next_cursor: null } };
  }
  const job = /^\/jobs\/([^/:]+)(?::(\w+)|\/(\w+))?$/.exec(path);
  if (job) {
    const one = runs.find((candidate) => candidate.id === job[1]);
    if (!one) return problem(404, "not_found", `There is no job ${job[1] ?? ""}.`);
    if (job[2] === "cancel") one.cancelledAt ??= Date.now();
    return job[3] ? jobPart(one, job[3], url.searchParams) : { body: jobOf(one) };
  }
  return collection(method, path, url, body);
}

function collection(method: string, path: string, url: URL, body: JsonObject): Reply {
  if (path === "/tokens" && method === "POST") {
    const made: ApiToken = {
      ...(tokens[0] as ApiToken),
      id: `tok_${tokens.length + 1}`,
      name: String(body.name),
      last_used_at: null,
    };
    tokens.push(made);
    return { status: 201, body: { ...made, token: "ath_9fK2demo0000000000000000000000000000000000" } };
  }
  if (path === "/datasets" && method === "POST") {
    const made = { ...(datasets[0] as Dataset), name: url.searchParams.get("name") ?? "", id: `d${datasets.length}` };
    datasets.push(made);
    return { status: 201, body: made };
  }
  if (path === "/tokens") return { body: { items: tokens, next_cursor: null } };
  if (path === "/datasets") return { body: { items: datasets, next_cursor: null } };
  const token = tokens.find((one) => path === `/tokens/${one.id}`);
  if (token) {
    token.revoked_at = new Date().toISOString();
    return { status: 204 };
  }
  return problem(404, "not_found", "There is nothing at this address.");
}

async function readJson(request: IncomingMessage): Promise<JsonObject> {
  const pieces: Buffer[] = [];
  for await (const piece of request) pieces.push(piece as Buffer);
  const text = Buffer.concat(pieces).toString();
  return request.headers["content-type"] === "application/json" && text ? (JSON.parse(text) as JsonObject) : {};
}

export function fakeApi(): Plugin {
  return {
    name: "athanor-fake-api",
    configureServer(server) {
      server.middlewares.use((request, response, next) => {
        const url = new URL(request.url ?? "/", "http://localhost");
        if (!url.pathname.startsWith("/api/v1")) return next();
        void readJson(request).then((body) => {
          const reply = answer(request.method ?? "GET", url, body);
          const code = reply.status ?? 200;
          response.statusCode = code;
          response.setHeader("Content-Type", code < 400 ? "application/json" : "application/problem+json");
          response.end(reply.body === undefined ? undefined : JSON.stringify(reply.body));
        });
      });
    },
  };
}
