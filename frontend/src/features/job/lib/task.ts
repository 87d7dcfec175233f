import type { Job } from "@/api/types";

const TASKS = ["prepare", "evaluation", "replay", "export"] as const;

/** What a job does, by its resolved spec. */
export type Task = "training" | (typeof TASKS)[number];

export function taskOf({ resolved_spec: spec }: Pick<Job, "resolved_spec">): Task {
  return TASKS.find((task) => spec[task] != null) ?? "training";
}
