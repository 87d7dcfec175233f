import { label, tone } from "@/lib/status";
import type { JobStatus } from "@/api/types";
import { CheckIcon, CrossIcon } from "@/components/icons";

import classes from "./status-badge.module.css";

/** A word, a colour and a shape: any one of the three is enough to read it. */
export function StatusBadge({ status, large = false }: { status: JobStatus; large?: boolean }) {
  const kind = tone(status);
  return (
    <span className={classes.badge} data-tone={kind} data-large={large} data-status={status}>
      {kind === "good" ? (
        <CheckIcon size={13} strokeWidth={2.6} />
      ) : kind === "bad" ? (
        <CrossIcon size={13} strokeWidth={2.6} />
      ) : (
        <span className={classes.dot} />
      )}
      {label(status)}
    </span>
  );
}
