import type { Wait } from "@/api/types";
import { duration } from "@/lib/format";

/** "in 5m 00s to 1h 10m", counted down since it was estimated; null while nobody knows. */
export function expectedStart(wait: Wait, now: number): string | null {
  const left = (seconds: number | null, since: string | null) =>
    seconds === null ? null : Math.max(0, seconds - (since === null ? 0 : (now - Date.parse(since)) / 1000));
  const likely = left(wait.p50_seconds, wait.estimated_at);
  const late = left(wait.p90_seconds, wait.estimated_at);
  if (likely !== null) {
    if (late !== null && late < 1) return "any moment";
    return `in about ${duration(likely)}${late === null ? "" : `, nine of ten within ${duration(late)}`}`;
  }
  const latest = left(wait.starts_in_seconds, wait.at);
  return latest === null ? null : latest < 1 ? "any moment" : `within ${duration(latest)}`;
}

/** "2 of 7" in the line for its pool. */
export function place(wait: Wait): string | null {
  if (wait.position === null) return null;
  return wait.of === null ? String(wait.position) : `${wait.position} of ${wait.of}`;
}

/** Who has what the job lacks: "blue 8 slots, green 2 slots". */
export function holders(wait: Wait): string {
  return (wait.blocker?.held_by ?? []).map(({ team, slots }) => `${team} ${slots} ${slots === 1 ? "slot" : "slots"}`).join(", ");
}

const BLOCKERS: Record<string, string> = {
  pool: "slots of pool",
  quota: "quota of",
  limit: "a limit of",
  budget: "budget",
  turn: "its turn after",
};

/** "slots of pool gpu, 2 slots missing"; null without a blocker, and on hold, where the blocker is the job itself. */
export function waitsFor({ blocker }: Wait): string | null {
  if (blocker === null || blocker.kind === "hold") return null;
  const name = `${BLOCKERS[blocker.kind] ?? blocker.kind} ${blocker.name}`;
  // A limit may lack jobs, a budget has its own unit.
  const countsSlots = blocker.kind === "pool" || blocker.kind === "quota";
  if (!countsSlots || blocker.lacking <= 0) return name;
  return `${name}, ${blocker.lacking} ${blocker.lacking === 1 ? "slot" : "slots"} missing`;
}
