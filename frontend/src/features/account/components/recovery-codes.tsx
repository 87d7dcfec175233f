import { Button, Group, Stack } from "@mantine/core";

import { CopyButton } from "@/components/copy-button";
import { DownloadIcon } from "@/components/icons";
import { Notice } from "@/components/notice";
import { saveFile } from "@/lib/save-file";

import classes from "./second-factors.module.css";

/** New recovery codes: the server does not show them again. */
export function NewCodes({ codes, onDone }: { codes: string[]; onDone: () => void }) {
  const text = codes.join("\n");
  const save = () => saveFile("athanor-recovery-codes.txt", new Blob([text, "\n"], { type: "text/plain" }));
  return (
    <Stack>
      <Notice tone="waiting" title="Save your recovery codes now">
        They are shown once. Each signs you in once when you have neither your authenticator app nor a passkey.
      </Notice>
      <ul className={classes.codes} aria-label="Recovery codes">
        {codes.map((code) => (
          <li key={code} className="mono">
            {code}
          </li>
        ))}
      </ul>
      <Group justify="space-between">
        <Group gap="xs">
          <CopyButton value={text} label="Copy codes" />
          <Button size="compact-sm" variant="default" leftSection={<DownloadIcon size={15} />} onClick={save}>
            Download
          </Button>
        </Group>
        <Button onClick={onDone}>Done</Button>
      </Group>
    </Stack>
  );
}
