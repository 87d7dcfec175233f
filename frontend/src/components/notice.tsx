import type { ReactNode } from "react";

import type { Tone } from "@/lib/status";

import classes from "./notice.module.css";

interface NoticeProps {
  tone: Tone;
  title?: string;
  /** Announced immediately by screen readers, for the result of the user's own action. */
  urgent?: boolean;
  children?: ReactNode;
}

export function Notice({ tone, title, urgent = false, children }: NoticeProps) {
  return (
    <div className={classes.notice} data-tone={tone} role={urgent ? "alert" : "note"}>
      {title ? <p className={classes.title}>{title}</p> : null}
      {children}
    </div>
  );
}
