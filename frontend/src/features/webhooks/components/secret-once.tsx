import { Button, Group, Stack } from "@mantine/core";

import { CopyButton } from "@/components/copy-button";
import { Notice } from "@/components/notice";

import classes from "./secret-once.module.css";

export function SecretOnce({ secret, onDone }: { secret: string; onDone: () => void }) {
  return (
    <Stack>
      <Group gap="xs" wrap="nowrap" className={classes.secret ?? ""}>
        <code>{secret}</code>
        <CopyButton value={secret} label="Copy the secret" />
      </Group>
      <Notice tone="waiting">
        It is shown this once. Every delivery carries <code>Athanor-Signature: t=TIME,v1=HEX</code>: an HMAC-SHA256 with
        it over <code>TIME.BODY</code>.
      </Notice>
      <Group justify="flex-end">
        <Button onClick={onDone}>Done</Button>
      </Group>
    </Stack>
  );
}
