import type { ReactNode } from "react";

import type { Tone } from "@/lib/status";

import classes from "./notice.module.css";

interface NoticeProps {
  tone: Tone;
  title?: string;
  /** Read out at once, as for what the reader has just caused. */
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
