import type { Sweeper } from "@/api/types";
import type { Tone } from "@/lib/status";

/** A failure counts until a run has succeeded since. */
export function condition(sweeper: Sweeper, now: number): { tone: Tone; text: string } {
  const failed = sweeper.failed_at === null ? 0 : Date.parse(sweeper.failed_at);
  const ran = sweeper.ran_at === null ? 0 : Date.parse(sweeper.ran_at);
  if (failed > ran && failed <= now) return { tone: "bad", text: "Failing" };
  if (sweeper.ran_at === null) {
    return sweeper.late ? { tone: "bad", text: "Never ran" } : { tone: "muted", text: "Not yet due" };
  }
  if (sweeper.late) return { tone: "bad", text: "Late" };
  return { tone: "good", text: "Runs" };
}
