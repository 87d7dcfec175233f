import type { Notification } from "@/api/types";
import type { Tone } from "@/lib/status";

/** A resolved alert is good news whatever its severity. */
export function severityTone({ kind, severity }: Pick<Notification, "kind" | "severity">): Tone {
  if (kind === "resolved") return "good";
  return severity === "critical" ? "bad" : severity === "warning" ? "waiting" : "muted";
}
