import type { Goodput, Timeline } from "@/api/types";

export type Activity = Timeline["spans"][number]["activity"];
type SlotActivity = Goodput["categories"][number]["activity"];

/** In the order in which a run goes through them. */
export const ACTIVITIES: Record<SlotActivity, { name: string; color: string }> = {
  queued: { name: "Queued", color: "--tone-waiting" },
  startup: { name: "Start-up", color: "--series-4" },
  preparing: { name: "Preparing data", color: "--series-1" },
  training: { name: "Training", color: "--series-1" },
  evaluation: { name: "Evaluation", color: "--series-2" },
  checkpoint: { name: "Waiting for checkpoints", color: "--series-3" },
  export: { name: "Export", color: "--series-7" },
  finishing: { name: "Finishing", color: "--series-6" },
  paused: { name: "Paused", color: "--tone-muted" },
  stalled: { name: "No progress", color: "--series-5" },
  lost: { name: "Lost, not saved", color: "--tone-bad" },
  idle: { name: "Idle nodes", color: "--series-8" },
  unattributed: { name: "Not known", color: "--ink-soft" },
};

/** Those of wall time: without `idle`, which is of some slots while others train. */
export const IN_ORDER = (Object.keys(ACTIVITIES) as SlotActivity[]).filter((each): each is Activity => each !== "idle");

/** In the order of a start-up; a phase with another name comes last. */
const PHASES = [
  "dispatch", "launch", "import", "fork", "rendezvous", "wait_for_data", "data", "model", "reference", "weights", "load", "compile",
  "first_step",
];

/** Compares names of phases by their place in a start-up. */
export function comparePhases(a: string, b: string): number {
  const place = (name: string) => (PHASES.indexOf(name) + PHASES.length + 1) % (PHASES.length + 1);
  return place(a) - place(b);
}

export function phaseName(phase: string): string {
  return phase.replaceAll("_", " ");
}
