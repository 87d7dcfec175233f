import { Button, Group, Stack } from "@mantine/core";
import type { ReactNode } from "react";

import { CopyButton } from "@/components/copy-button";
import { Notice } from "@/components/notice";

import classes from "./shown-once.module.css";

/** A secret that the server does not show again; `children` says what it is used for. */
export function ShownOnce({ secret, onDone, children }: { secret: string; onDone: () => void; children: ReactNode }) {
  return (
    <Stack>
      <Group gap="xs" wrap="nowrap" className={classes.secret ?? ""}>
        <code>{secret}</code>
        <CopyButton value={secret} label="Copy secret" />
      </Group>
      <Notice tone="waiting">{children}</Notice>
      <Group justify="flex-end">
        <Button onClick={onDone}>Done</Button>
      </Group>
    </Stack>
  );
}
