import { Button, PasswordInput, Stack, Text } from "@mantine/core";
import { notifications } from "@mantine/notifications";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import type { SubmitEvent } from "react";

import { sessionKey } from "@/api/session";
import { Panel } from "@/components/panel";
import { ProblemNotice } from "@/components/problem-notice";
import { changePassword, signInsKey } from "@/features/account/api/account";
import { fieldsOf } from "@/lib/form";

export function PasswordPanel() {
  const client = useQueryClient();
  const change = useMutation({
    mutationFn: ({ current, next }: { current: string; next: string; form: HTMLFormElement }) =>
      changePassword(current, next),
    onSuccess: async (_, { form }) => {
      form.reset();
      notifications.show({ message: "Password changed. Your other sessions have ended." });
      // The session has a new CSRF token.
      await client.invalidateQueries({ queryKey: sessionKey });
      await client.invalidateQueries({ queryKey: signInsKey });
    },
  });
  const submit = (event: SubmitEvent<HTMLFormElement>) => {
    const field = fieldsOf(event);
    change.mutate({ current: field("current"), next: field("next"), form: event.currentTarget });
  };
  return (
    <Panel title="Change password">
      <form onSubmit={submit}>
        <Stack gap="md" maw={420}>
          <PasswordInput
            name="current"
            label="Current password"
            autoComplete="current-password"
            required
            withAsterisk={false}
          />
          <PasswordInput
            name="next"
            label="New password"
            autoComplete="new-password"
            required
            withAsterisk={false}
          />
          <Text size="sm" c="dimmed">
            At least 8 characters, not a common password. You stay signed in here; other browsers are signed out.
          </Text>
          {change.error ? <ProblemNotice error={change.error} /> : null}
          <div>
            <Button type="submit" loading={change.isPending}>
              Change password
            </Button>
          </div>
        </Stack>
      </form>
    </Panel>
  );
}
