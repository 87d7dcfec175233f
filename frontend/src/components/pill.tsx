import type { ReactNode } from "react";

import { CheckIcon, CrossIcon } from "@/components/icons";
import type { Tone } from "@/lib/status";

import classes from "./pill.module.css";

interface PillProps {
  tone: Tone;
  large?: boolean;
  /** The status it stands for, where one is meant. */
  status?: string;
  children: ReactNode;
}

/** A word, a colour and a shape: any one of the three is enough to read it. */
export function Pill({ tone, large = false, status, children }: PillProps) {
  return (
    <span className={classes.pill} data-tone={tone} data-large={large} data-status={status}>
      {tone === "good" ? (
        <CheckIcon size={13} strokeWidth={2.6} />
      ) : tone === "bad" ? (
        <CrossIcon size={13} strokeWidth={2.6} />
      ) : (
        <span className={classes.dot} />
      )}
      {children}
    </span>
  );
}
