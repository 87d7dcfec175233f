import type { Artifact, Checkpoint, Job, JobEvent, JobStatus, JsonObject, LogLine, Metrics } from "@/api/types";

/** Invented runs for work on the look of a page: what a job shows is a function of its age, so it moves by itself. */

export interface FakeRun {
  id: string;
  name: string;
  born: number;
  steps: number;
  stepSeconds: number;
  /** How the run ends when it is not cancelled before. */
  fate: "succeeded" | "failed" | "waiting";
  cancelledAt: number | null;
  spec: JsonObject;
}

const STARTUP = { agent: 0.4, processes: 2.1, data: 1.6, tokenizer: 1.2, model: 0.5 };
const STARTUP_SECONDS = Object.values(STARTUP).reduce((sum, seconds) => sum + seconds, 0);
const QUEUE_SECONDS = 1.2;
const TOKENS_PER_STEP = 8192;

const iso = (ms: number) => new Date(ms).toISOString();
const noise = (step: number, seed: number) => Math.sin(step * 12.9898 + seed * 78.233) * 0.5;
const trainLoss = (step: number) => 2.1 + 5.6 * Math.exp(-step / 60) + 0.14 * noise(step, 1);
const heldLoss = (step: number) => 2.2 + 5.45 * Math.exp(-step / 62);
const learningRate = (step: number, steps: number) =>
  3e-3 * Math.min(1, (step + 1) / 20, Math.max(0.05, (steps - step) / (steps * 0.2)));

const wholeAge = (run: FakeRun) => QUEUE_SECONDS + STARTUP_SECONDS + run.steps * run.stepSeconds;

function age(run: FakeRun): number {
  const until = run.cancelledAt ?? Date.now();
  return (until - run.born) / 1000;
}

export function status(run: FakeRun): JobStatus {
  if (run.cancelledAt !== null) return "cancelled";
  const seconds = age(run);
  if (run.fate === "waiting" || seconds < QUEUE_SECONDS) return "queued";
  if (seconds < QUEUE_SECONDS + STARTUP_SECONDS) return "starting";
  if (run.fate === "failed" && seconds > wholeAge(run) * 0.6) return "failed";
  return seconds < wholeAge(run) ? "running" : "succeeded";
}

function stepOf(run: FakeRun): number {
  const share = run.fate === "failed" ? 0.6 : 1;
  const limit = Math.floor(run.steps * share);
  const training = age(run) - QUEUE_SECONDS - STARTUP_SECONDS;
  if (run.fate === "waiting") return 0;
  return Math.max(0, Math.min(limit, Math.floor(training / run.stepSeconds)));
}

const timeOfStep = (run: FakeRun, step: number) =>
  run.born + 1000 * (QUEUE_SECONDS + STARTUP_SECONDS + step * run.stepSeconds);

function reason(state: JobStatus): Job["reason"] {
  if (state === "queued") {
    return {
      code: "waiting_for_capacity",
      message: "All 16 slots of h100-pool are in use.",
      remedy: "It starts by itself when a slot is free; a smaller job may fit sooner.",
    };
  }
  if (state === "failed") {
    return {
      code: "out_of_memory",
      message: "Rank 1 ran out of memory at step 180.",
      remedy: "Halve training.parallelism.micro_batch_sequences, or use more processes.",
    };
  }
  if (state === "cancelled") return { code: "stopped_by_user", message: "Cancelled by ada.", remedy: null };
  return state === "succeeded" ? { code: "completed", message: "Completed.", remedy: null } : null;
}

export function jobOf(run: FakeRun): Job {
  const state = status(run);
  const step = stepOf(run);
  const started = run.fate === "waiting" || state === "queued" ? null : iso(run.born + QUEUE_SECONDS * 1000);
  const done = ["succeeded", "failed", "cancelled"].includes(state);
  const finished = done ? iso(run.cancelledAt ?? timeOfStep(run, step) + 2500) : null;
  const training = step * run.stepSeconds;
  return {
    id: run.id,
    name: run.name,
    team: { id: "team_01", name: "demo" },
    project: "default",
    labels: run.fate === "succeeded" ? { sweep: "lr" } : {},
    priority: "normal",
    status: state,
    desired: run.cancelledAt === null ? "run" : "stop",
    reason: reason(state),
    health: "ok",
    created_at: iso(run.born),
    started_at: started,
    finished_at: finished,
    updated_at: iso(Date.now()),
    created_by: "ada",
    attempt_count: started === null ? 0 : 1,
    progress:
      started === null
        ? null
        : {
            step,
            steps_total: run.steps,
            tokens_seen: step * TOKENS_PER_STEP,
            loss: step > 0 ? trainLoss(step) : null,
            validation_loss: heldLoss(Math.floor(step / 50) * 50),
            tokens_per_second: step > 0 ? TOKENS_PER_STEP / run.stepSeconds : null,
            mfu: step > 0 ? 0.31 : null,
            eta_seconds: state === "running" ? (run.steps - step) * run.stepSeconds : null,
            phase: state === "starting" ? "data" : "training",
            updated_at: iso(Date.now()),
          },
    validation_loss: started === null ? null : { before: heldLoss(0), after: done ? heldLoss(step) : null },
    attempts: [],
    warnings:
      state === "running"
        ? [
            {
              pointer: "/resources/processes_per_node",
              code: "more_processes_than_cores",
              detail: "4 processes share 2 cores: steps take about twice as long.",
            },
          ]
        : [],
    timings: {
      queued_seconds: QUEUE_SECONDS,
      startup: started === null ? {} : STARTUP,
      training_seconds: step > 0 ? training * 0.97 : null,
      checkpoint_seconds: step > 50 ? training * 0.03 : null,
      export_seconds: state === "succeeded" ? 0.9 : null,
    },
    spec: run.spec,
    resolved_spec: { ...run.spec, priority: "normal", resources: { nodes: 1, processes_per_node: 2 } },
    submission: "exec python -m trainer.agent\n# ATHANOR_NODE_RANK=0\n# ATHANOR_WORK_DIR=/tmp/attempt\n",
  };
}

export function metricsOf(run: FakeRun, after: number): Metrics {
  const steps = Array.from({ length: stepOf(run) }, (_, index) => index + 1).filter((step) => step > after);
  const sparse = [0, ...steps].filter((step) => step % 50 === 0 && (step > 0 || after < 0));
  const series = (at: number[], value: (step: number) => number) => ({
    steps: at,
    values: at.map(value),
    times: at.map((step) => iso(timeOfStep(run, step))),
  });
  const all: Metrics["series"] = {
    "train/loss": series(steps, trainLoss),
    "evaluation/loss": series(sparse, heldLoss),
    "train/learning_rate": series(steps, (step) => learningRate(step, run.steps)),
    "train/gradient_norm": series(steps, (step) => 0.4 + 2 * Math.exp(-step / 40) + 0.1 * noise(step, 2)),
    "throughput/tokens_per_second": series(steps, (step) => (TOKENS_PER_STEP / run.stepSeconds) * (1 + 0.06 * noise(step, 3))),
    "time/step_seconds": series(steps, (step) => run.stepSeconds * (1 - 0.06 * noise(step, 3))),
  };
  return { series: all, last_step: stepOf(run), names: Object.keys(all) };
}

export function eventsOf(run: FakeRun): JobEvent[] {
  const state = status(run);
  const list: [number, string, string][] = [[0, "job.submitted", "Submitted"]];
  if (run.fate !== "waiting") {
    let at = QUEUE_SECONDS;
    list.push([at, "job.admitted", "Admitted to local"], [at, "attempt.created", "Attempt 1 starts"]);
    for (const [phase, seconds] of Object.entries(STARTUP)) {
      at += seconds;
      list.push([at, "startup.phase", `Start-up: ${phase} ready after ${seconds} s`]);
    }
    list.push([at, "job.running", "Training began"]);
    for (let step = 50; step <= stepOf(run); step += 50) {
      list.push([at + step * run.stepSeconds, "checkpoint.created", `Checkpoint of step ${step}`]);
    }
    if (["succeeded", "failed", "cancelled"].includes(state)) list.push([age(run), `job.${state}`, `Job ${state}`]);
  }
  return list
    .filter(([seconds]) => seconds <= age(run))
    .map(([seconds, type, message], index) => ({
      seq: index + 1,
      type,
      time: iso(run.born + seconds * 1000),
      actor: index === 0 ? "ada" : null,
      data: {},
      message,
    }));
}

export function logOf(run: FakeRun): LogLine[] {
  const lines: LogLine[] = [];
  for (let step = 1; step <= stepOf(run); step += 1) {
    for (const rank of [0, 1]) {
      if (rank === 1 && step % 10 !== 0) continue;
      lines.push({
        cursor: String(lines.length + 1).padStart(8, "0"),
        time: iso(timeOfStep(run, step)),
        attempt: 1,
        rank,
        stream: rank === 1 && step % 40 === 0 ? "stderr" : "stdout",
        text:
          rank === 1
            ? `rank 1: waited 12 ms for the reduction of step ${step}`
            : `step ${step} loss ${trainLoss(step).toFixed(4)} lr ${learningRate(step, run.steps).toExponential(2)}`,
      });
    }
  }
  return lines;
}

export function checkpointsOf(run: FakeRun): Checkpoint[] {
  return Array.from({ length: Math.floor(stepOf(run) / 50) }, (_, index) => ({
    id: `ckp_01K${run.id.slice(-6)}${index}`,
    attempt: 1,
    step: (index + 1) * 50,
    size_bytes: 14_200_000,
    world_size: 2,
    metrics: { "evaluation/loss": heldLoss((index + 1) * 50) },
    created_at: iso(timeOfStep(run, (index + 1) * 50)),
  }));
}

export function artifactsOf(run: FakeRun): Artifact[] {
  if (status(run) !== "succeeded") return [];
  const files = [
    { path: "model.safetensors", size: 4_310_000 },
    { path: "config.json", size: 812 },
    { path: "tokenizer.json", size: 131_000 },
  ];
  return [
    {
      id: `art_${run.id.slice(4)}`,
      kind: "model",
      name: `${run.name} at step ${run.steps}`,
      step: run.steps,
      size_bytes: files.reduce((sum, file) => sum + file.size, 0),
      files,
      metrics: {},
      created_at: iso(timeOfStep(run, run.steps) + 2000),
    },
  ];
}
