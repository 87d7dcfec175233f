import { Group, Title } from "@mantine/core";
import type { ReactNode } from "react";

import classes from "./panel.module.css";

interface PanelProps {
  title?: string;
  tools?: ReactNode;
  /** Tables and editors reach the panel's edge. */
  flush?: boolean;
  children: ReactNode;
}

export function Panel({ title, tools, flush = false, children }: PanelProps) {
  return (
    <section className={classes.panel} {...(title ? { "aria-label": title } : {})}>
      {title ? (
        <Group justify="space-between" gap="xs" className={classes.head}>
          <Title order={2} className={classes.title}>
            {title}
          </Title>
          {tools}
        </Group>
      ) : null}
      <div className={flush ? classes.flush : classes.body}>{children}</div>
    </section>
  );
}
