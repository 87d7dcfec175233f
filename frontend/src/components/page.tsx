import { Group, Stack, Text, Title } from "@mantine/core";
import type { ReactNode } from "react";
import { useEffect } from "react";

import classes from "./page.module.css";

interface PageProps {
  title: string;
  /** One line below the title. */
  lead?: ReactNode;
  actions?: ReactNode;
  children: ReactNode;
}

/** A page's frame: its one h1, its actions at the right, and the title of the browser's tab. */
export function Page({ title, lead, actions, children }: PageProps) {
  useEffect(() => {
    document.title = `${title} · Athanor`;
  }, [title]);
  return (
    <Stack gap="lg" className={classes.page}>
      <Group justify="space-between" align="flex-end" gap="md">
        <div className={classes.heading}>
          <Title order={1} className={classes.title}>
            {title}
          </Title>
          {lead ? (
            <Text c="dimmed" size="sm" mt={4} component="div">
              {lead}
            </Text>
          ) : null}
        </div>
        {actions ? <Group gap="sm">{actions}</Group> : null}
      </Group>
      {children}
    </Stack>
  );
}
