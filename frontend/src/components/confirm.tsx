import { Button, Group, Modal, Stack } from "@mantine/core";
import type { ReactNode } from "react";

import { ProblemNotice } from "@/components/problem-notice";

interface ConfirmProps {
  opened: boolean;
  title: string;
  children: ReactNode;
  /** What each button does, in words: "OK" answers no question. */
  yes: string;
  no: string;
  busy?: boolean;
  /** The answer yes is not possible. */
  disabled?: boolean;
  error?: unknown;
  onYes: () => void;
  onNo: () => void;
}

export function Confirm({ opened, title, children, yes, no, busy, disabled, error, onYes, onNo }: ConfirmProps) {
  return (
    <Modal opened={opened} onClose={onNo} title={title} centered>
      <Stack>
        {children}
        {error ? <ProblemNotice error={error} /> : null}
        <Group justify="flex-end">
          <Button variant="default" onClick={onNo} data-autofocus>
            {no}
          </Button>
          <Button color="red" loading={busy ?? false} disabled={disabled ?? false} onClick={onYes}>
            {yes}
          </Button>
        </Group>
      </Stack>
    </Modal>
  );
}
