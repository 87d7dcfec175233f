import type { JobStatus } from "@/api/types";

const FINAL: ReadonlySet<JobStatus> = new Set(["succeeded", "failed", "cancelled", "expired"]);

export function isFinal(status: JobStatus): boolean {
  return FINAL.has(status);
}

export function canCancel(status: JobStatus): boolean {
  return !FINAL.has(status) && status !== "stopping";
}

/** Tone decides the colour; the word and the shape carry the same meaning for those who do not see it. */
export type Tone = "waiting" | "active" | "good" | "bad" | "muted";

const TONES: Record<JobStatus, Tone> = {
  queued: "waiting",
  admitted: "waiting",
  dispatching: "waiting",
  starting: "active",
  running: "active",
  pausing: "waiting",
  paused: "waiting",
  stopping: "waiting",
  succeeded: "good",
  failed: "bad",
  cancelled: "muted",
  expired: "muted",
};

export function tone(status: JobStatus): Tone {
  return TONES[status];
}

export function label(status: string): string {
  return status.charAt(0).toUpperCase() + status.slice(1).replaceAll("_", " ");
}

/** The filters of the jobs table: few enough to be read at a glance, each a set of statuses on the wire. */
export const STATUS_GROUPS = {
  all: [],
  waiting: ["queued", "admitted", "dispatching", "paused"],
  active: ["starting", "running", "pausing", "stopping"],
  succeeded: ["succeeded"],
  failed: ["failed", "expired"],
  cancelled: ["cancelled"],
} as const satisfies Record<string, readonly JobStatus[]>;

export type StatusGroup = keyof typeof STATUS_GROUPS;

export function isStatusGroup(name: string): name is StatusGroup {
  return Object.hasOwn(STATUS_GROUPS, name);
}
