import { Button, Group, PasswordInput, Stack } from "@mantine/core";
import type { SubmitEvent, ReactNode } from "react";

import { ProblemNotice } from "@/components/problem-notice";
import { fieldsOf } from "@/lib/form";

interface PasswordFormProps {
  /** What the button does. */
  action: string;
  danger?: boolean;
  busy: boolean;
  error: unknown;
  /** Fields above the password, and what it is for. */
  children?: ReactNode;
  onSubmit: (password: string, field: (name: string) => string) => void;
  onCancel: () => void;
}

/** Changes of second factors need the current password. */
export function PasswordForm({ action, danger, busy, error, children, onSubmit, onCancel }: PasswordFormProps) {
  const submit = (event: SubmitEvent<HTMLFormElement>) => {
    const field = fieldsOf(event);
    onSubmit(field("password"), field);
  };
  return (
    <form onSubmit={submit}>
      <Stack>
        {children}
        <PasswordInput
          name="password"
          label="Your password"
          autoComplete="current-password"
          required
          withAsterisk={false}
        />
        {error ? <ProblemNotice error={error} /> : null}
        <Group justify="flex-end">
          <Button variant="default" onClick={onCancel}>
            Cancel
          </Button>
          <Button type="submit" loading={busy} {...(danger ? { color: "red" } : {})}>
            {action}
          </Button>
        </Group>
      </Stack>
    </form>
  );
}
