import type { Reconciler } from "@/api/types";
import type { Tone } from "@/lib/status";

/** A failure counts until a run has succeeded since. */
export function condition(reconciler: Reconciler, now: number): { tone: Tone; text: string } {
  const failed = reconciler.failed_at === null ? 0 : Date.parse(reconciler.failed_at);
  const ran = reconciler.ran_at === null ? 0 : Date.parse(reconciler.ran_at);
  if (failed > ran && failed <= now) return { tone: "bad", text: "Failing" };
  if (reconciler.ran_at === null) {
    return reconciler.late ? { tone: "bad", text: "Never ran" } : { tone: "muted", text: "Not yet due" };
  }
  if (reconciler.late) return { tone: "bad", text: "Late" };
  return { tone: "good", text: "Runs" };
}
