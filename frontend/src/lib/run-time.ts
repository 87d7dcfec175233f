import type { JobSummary } from "@/api/types";
import { elapsed } from "@/lib/format";

/** Seconds that all attempts of a job ran together; null before the first one was launched. */
export function runTime(job: Pick<JobSummary, "ran_seconds" | "running_since">, now: number): number | null {
  const current = elapsed(job.running_since, null, now);
  return current === null && job.ran_seconds === 0 ? null : job.ran_seconds + (current ?? 0);
}
