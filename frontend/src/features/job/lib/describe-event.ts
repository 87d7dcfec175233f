import type { JobEvent } from "@/api/types";
import { bytes, duration, loss } from "@/lib/format";
import type { Tone } from "@/lib/status";
import { label, tone } from "@/lib/status";
import { sentence } from "@/lib/text";

export interface Described {
  text: string;
  tone: Tone;
  /** Who did it, when that is somebody: the parts of the platform and an attempt's own reports go without. */
  actor: string | null;
}

const STATUSES = new Set(
  "queued admitted dispatching starting running pausing paused stopping succeeded failed cancelled expired".split(" "),
);
const PARTS = new Set(["scheduling", "dispatch", "platform", "alerts", ""]);

/** Saving is reported again, after verification, when the checkpoint is registered. */
const UNTOLD = new Set(["checkpoint.saved"]);

function statusTone(status: string): Tone {
  return STATUSES.has(status) ? tone(status as Parameters<typeof tone>[0]) : "muted";
}

const TIERS: Record<string, string> = {
  shadow: "copies in the nodes' memory",
  peer: "copies in the memory of other nodes",
};

const WORDS: Record<string, string> = {
  admitted: "Admitted",
  dispatching: "Sent to the cluster",
  starting: "Starting",
  running: "Running",
  queued: "Back in the queue",
};

function statusText(event: JobEvent, to: string): string {
  const words = WORDS[to] ?? label(to);
  const attempt = to === "dispatching" && typeof event.data.number === "number" ? `, attempt ${event.data.number}` : "";
  return event.message === "" ? words + attempt : `${words}: ${event.message}`;
}

/** An event in words. A type this version does not know shows its own name, never nothing. */
export function describeEvent(event: JobEvent): Described | null {
  if (UNTOLD.has(event.type)) return null;
  const actor = PARTS.has(event.actor) || event.actor.startsWith("att_") ? null : event.actor;
  const number = (name: string) => (typeof event.data[name] === "number" ? event.data[name] : null);
  const word = (name: string) => (typeof event.data[name] === "string" ? event.data[name] : "");
  const described = (text: string, kind: Tone = "muted"): Described => ({ text, tone: kind, actor });
  const step = number("step");

  switch (event.type) {
    case "job.submitted":
      return described("Submitted");
    case "job.status":
      return described(statusText(event, word("to")), statusTone(word("to")));
    case "job.waiting":
      return described(`Waiting: ${event.message || word("reason").replaceAll("_", " ")}`, "waiting");
    case "job.stop_requested":
      return described("Cancel requested", "waiting");
    case "phase.finished":
      return described(`${label(word("phase"))} took ${duration(number("seconds"))}`);
    case "dataset.waiting":
      return described(`Waiting for ${word("job")}, which prepares the same data (${word("source")})`, "waiting");
    case "evaluation":
      return described(`Validation loss ${loss(number("loss"))} at step ${step ?? "?"}`);
    case "evaluation.sample":
      return described(`At step ${step ?? "?"}, “${word("prompt")}” continues: ${word("text")}`);
    case "step.skipped":
      return described(`Step ${step ?? "?"} skipped: ${word("because")}${detailsOf(event)}`, "waiting");
    case "gradient.large":
      return described(
        `Large gradient at step ${step ?? "?"}: norm ${number("norm")?.toPrecision(3) ?? "?"}, ${word("because")}${detailsOf(event)}`, "waiting",
      );
    case "loss.large":
      return described(
        `Large loss at step ${step ?? "?"}: ${loss(number("loss"))}, above ${loss(number("limit"))}${detailsOf(event)}`, "waiting",
      );
    case "tokenizer.smaller":
      return described(
        `The vocabulary has ${number("made") ?? "?"} entries instead of ${number("asked") ?? "?"}: ${word("because")}`, "waiting",
      );
    case "preflight.completed":
      return described(
        { ok: "Preflight: nothing is slow or broken", slow: "Preflight found slow nodes", broken: "Preflight found broken nodes" }[word("result")] ??
          "Preflight completed",
        { ok: "good" as const, slow: "waiting" as const, broken: "bad" as const }[word("result")] ?? "muted",
      );
    case "gpu.throttled":
      return described(`GPU ${number("gpu") ?? "?"} of ${word("node")} is slowed down: ${word("because")}`, "waiting");
    case "gpu.ecc_uncorrected":
      return described(`${word("node")}: ${word("because")}`, "bad");
    case "job.idle":
      return described(event.message, "waiting");
    case "alert.firing":
      return described(`Alert ${event.message}`, "bad");
    case "alert.resolved":
      return described(`Alert resolved: ${event.message}`, "good");
    case "steps.resolved":
      return described(
        `Trains for ${number("steps") ?? "?"} steps; ${number("epochs") ?? "?"} passes over ${number("sequences") ?? "?"} sequences at most`,
      );
    case "training.ended_early":
      return described(
        `Ended early after step ${step ?? "?"}: no lower held-out loss since step ${number("best_step") ?? "?"}`,
      );
    case "sequence.longer":
      return described(`Long sequences: ${word("because")}`, "waiting");
    case "memory.micro_batch_halved":
      return described(`Memory ran out: micro-batches of ${number("after")} sequences instead of ${number("before")}`, "waiting");
    case "settings.resolved": {
      const attention = word("attention") === "" ? "" : ` with ${word("attention")} attention`;
      return described(
        `Training on ${word("device")} in ${word("precision")}${attention}: micro-batches of ${number("micro_batch_sequences") ?? "?"} sequences`,
      );
    }
    case "software.found":
      return described(`Runs Athanor ${word("trainer")} on Python ${word("python")} with PyTorch ${word("torch")}`);
    case "precision.slow":
      return described(word("because"), "waiting");
    case "compile.partial":
      return described(`${number("blocks") ?? "?"} of ${number("of") ?? "?"} blocks are not compiled: ${word("because")}`, "waiting");
    case "cuda_graphs.unused":
      return described(`CUDA graphs are not used: ${word("because")}`);
    case "tensor_overlap.unused":
      return described(`Products do not overlap with exchanges: ${word("because")}`);
    case "progress.stalled":
      return described(`No progress for ${duration(number("seconds"))}: ${word("because")}`, "waiting");
    case "rank.slow":
      return described(
        `Rank ${number("rank") ?? "?"} is slow: ${number("times_the_median")?.toFixed(1) ?? "?"} times the median of all ranks`, "waiting",
      );
    case "replicas.differ":
      return described(`Parameters of rank ${word("ranks")} differ from their replicas: ${word("replicas")}`, "waiting");
    case "replicas.compared":
      return described(`Replicas compared after a restart: ${word("because")}`, "waiting");
    case "gradient.corrupted":
      return described(`A gradient was corrupted; its step was computed again: ${word("because")}`, "waiting");
    case "step.recomputed":
      return described(`Step ${step ?? "?"} was computed again: ${word("because")}`);
    case "training.rolled_back":
      return described(`Back to the checkpoint of step ${step ?? "?"}, without the data since: ${word("because")}`, "waiting");
    case "generation.started":
      return described(`Restarted in place: ${word("because")}`, "waiting");
    case "attempt.shrunk":
      return described(`Continues on ${number("nodes") ?? "?"} of ${number("of") ?? "?"} nodes, with the same batches`, "waiting");
    case "attempt.grown":
      return described(`Continues on ${number("nodes") ?? "?"} of ${number("of") ?? "?"} nodes again, with the same batches`);
    case "attempt.node_requested":
      return described(`The cluster lost node ${word("node")}; another one was requested in its place`, "waiting");
    case "attempt.node_refused":
      return described(`The cluster refused a node in the place of a lost one: ${word("because")}`, "waiting");
    case "checkpoint.interval": {
      const cost = (number("stall_seconds") ?? 0) + (number("slowdown_seconds") ?? 0);
      return described(`Checkpoints at least every ${duration(60 * (number("minutes") ?? NaN))}, as a save costs ${duration(cost)}`);
    }
    case "checkpoint.restored":
      return described(`Continues after step ${step ?? "?"}, from ${TIERS[word("tier")] ?? "a stored checkpoint"}`);
    case "replica.failed":
      return described(`Copies of rank ${number("rank") ?? "?"} do not reach another node: ${word("because")}`, "waiting");
    case "replica.unused":
      return described(`No copies on other nodes: ${word("because")}`);
    case "shadow.skipped":
      return described(`The shadow checkpoint of step ${step ?? "?"} is not used: rank ${number("rank") ?? "?"}: ${word("because")}`, "waiting");
    case "shadow.unused":
      return described(`No shadow checkpoints: ${word("because")}`);
    case "training.started":
      return described(step ? `Training resumes from step ${step}` : "Training starts");
    case "evaluation.task": {
      const values = Object.entries(event.data["values"] ?? {}).map(([metric, value]) => `${metric} ${loss(Number(value))}`);
      const of = `${number("n") ?? "?"} items in ${duration(number("seconds"))}`;
      return described(`Evaluation ${word("name")}: ${values.join(", ") || "no metric"} (${of})`);
    }
    case "evaluation.registered":
      return described(`${number("results") ?? "?"} results of the evaluation stored with the model`, "good");
    case "evaluation.submitted":
      return described(`Evaluation submitted: ${event.message}`, "good");
    case "evaluation.refused":
      return described(`Evaluation refused: ${word("because")}; ${word("remedy")}`, "bad");
    case "replay.segment":
      return described(`Steps ${number("first_step") ?? "?"} to ${number("last_step") ?? "?"} replayed: ${word("verdict")}`);
    case "replay.registered": {
      const isGood = word("verdict") === "equal" || word("verdict") === "within_tolerance";
      return described(`Result of the replay stored: ${word("verdict")}`, isGood ? "good" : "bad");
    }
    case "export.best":
      return described(`The model is that of step ${step ?? "?"}, which had the lowest held-out loss`);
    case "export.finished":
      return described(`Model exported in ${duration(number("seconds"))}`);
    case "checkpoint.registered":
      return described(`Checkpoint of step ${step ?? "?"}${sizeOf(event)}`);
    case "checkpoint.damaged":
      return described(`Checkpoint of step ${step ?? "?"} is damaged and not used: ${word("because")}`, "waiting");
    case "checkpoint.intact":
      return described(`Checkpoint of step ${step ?? "?"} is intact again: ${word("because")}`);
    case "checkpoint.retired":
      return described(`Checkpoint of step ${step ?? "?"} is given up: ${word("because")}`);
    case "data_report.registered":
      return described(
        `Data report ready: ${number("critical") ?? 0} critical kinds of findings, ${number("warning") ?? 0} warnings`,
        (number("critical") ?? 0) > 0 ? "waiting" : "good",
      );
    case "model.registered":
      return described(`Registered as ${event.message}`, "good");
    case "model.alias_moved":
      return described(`Alias moved: ${event.message}`);
    case "model.alias_removed":
      return described(`Alias removed: ${event.message}`);
    case "secret.withheld":
      return described(`Secret withheld: ${event.message}`, "waiting");
    case "profile.requested":
      return described(`Profile of ${number("steps") ?? "?"} steps requested`);
    case "profile.ready":
      return described(`Profile of steps ${number("first_step") ?? "?"} to ${number("last_step") ?? "?"} ready${sizeOf(event)}`);
    case "profile.failed":
      return described(`Profile failed: ${word("because")}`, "waiting");
    case "agent.events_refused":
      return described(event.message, "waiting");
    case "sink.failed":
      return described(`Metrics do not reach ${word("sink")}: ${word("because")}`, "waiting");
    case "sink.incomplete":
      return described(`${word("sink")} never got ${number("points_lost") ?? "?"} points`, "waiting");
    case "artifact.registered":
      return word("kind") === "model"
        ? described(`Model ready to download${sizeOf(event)}`, "good")
        : described(`${label(word("kind") || "artifact")} stored${sizeOf(event)}`);
    default:
      return described(sentence(event.message || event.type.replace(/[._]/g, " ")));
  }
}

/** Where the gradient of a step was large, and the data of the step; nothing in events of older versions. */
function detailsOf(event: JobEvent): string {
  const { layers, first_sequence: first, last_sequence: last, worst_batch: worst } = event.data;
  const gradient = typeof layers === "string" && layers !== "" ? `; gradient: ${layers}` : "";
  const sequences = typeof first === "number" && typeof last === "number" ? `; sequences ${first} to ${last}` : "";
  return gradient + sequences + (typeof worst === "string" ? `; highest loss ${worst}` : "");
}

function sizeOf(event: JobEvent): string {
  const size = event.data.bytes;
  return typeof size === "number" ? `, ${bytes(size)}` : "";
}
