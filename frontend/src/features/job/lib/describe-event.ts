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
const PARTS = new Set(["scheduling", "dispatch", "platform", ""]);

/** Its saving is told again, with the proof that it can be loaded, when it is registered. */
const UNTOLD = new Set(["checkpoint.saved"]);

function statusTone(status: string): Tone {
  return STATUSES.has(status) ? tone(status as Parameters<typeof tone>[0]) : "muted";
}

const WORDS: Record<string, string> = {
  admitted: "Admitted",
  dispatching: "Handed to the cluster",
  starting: "Starting",
  running: "Training",
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
  const told = (text: string, kind: Tone = "muted"): Described => ({ text, tone: kind, actor });
  const step = number("step");

  switch (event.type) {
    case "job.submitted":
      return told("Submitted");
    case "job.status":
      return told(statusText(event, word("to")), statusTone(word("to")));
    case "job.waiting":
      return told(`Waiting: ${event.message || word("reason").replaceAll("_", " ")}`, "waiting");
    case "job.stop_requested":
      return told("Cancel requested", "waiting");
    case "phase.finished":
      return told(`${label(word("phase"))} took ${duration(number("seconds"))}`);
    case "evaluation":
      return told(`Validation loss ${loss(number("loss"))} at step ${step ?? "?"}`);
    case "evaluation.sample":
      return told(`At step ${step ?? "?"}, “${word("prompt")}” goes on: ${word("text")}`);
    case "step.skipped":
      return told(`Step ${step ?? "?"} skipped: ${word("because")}`, "waiting");
    case "memory.micro_batch_halved":
      return told(`Memory ran out: micro-batches of ${number("after")} sequences instead of ${number("before")}`, "waiting");
    case "cuda_graphs.unused":
      return told(`CUDA graphs are not used: ${word("because")}`);
    case "tensor_overlap.unused":
      return told(`Products do not overlap with exchanges: ${word("because")}`);
    case "generation.started":
      return told(`Restarted in place: ${word("because")}`, "waiting");
    case "export.finished":
      return told(`Model exported in ${duration(number("seconds"))}`);
    case "checkpoint.registered":
      return told(`Checkpoint of step ${step ?? "?"}${sizeOf(event)}`);
    case "secret.withheld":
      return told(`Secret withheld: ${event.message}`, "waiting");
    case "profile.requested":
      return told(`Profile of ${number("steps") ?? "?"} steps requested`);
    case "profile.ready":
      return told(`Profile of steps ${number("first_step") ?? "?"} to ${number("last_step") ?? "?"} ready${sizeOf(event)}`);
    case "profile.failed":
      return told(`Profile failed: ${word("because")}`, "waiting");
    case "agent.events_refused":
      return told(event.message, "waiting");
    case "sink.failed":
      return told(`Metrics do not reach ${word("sink")}: ${word("because")}`, "waiting");
    case "sink.incomplete":
      return told(`${word("sink")} never got ${number("points_lost") ?? "?"} points`, "waiting");
    case "artifact.registered":
      return word("kind") === "model"
        ? told(`Model ready to download${sizeOf(event)}`, "good")
        : told(`${label(word("kind") || "artifact")} stored${sizeOf(event)}`);
    default:
      return told(sentence(event.message || event.type.replace(/[._]/g, " ")));
  }
}

function sizeOf(event: JobEvent): string {
  const size = event.data.bytes;
  return typeof size === "number" ? `, ${bytes(size)}` : "";
}
