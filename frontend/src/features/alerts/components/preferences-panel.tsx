import { Button, Group, NativeSelect, Stack, Switch, Text, TextInput } from "@mantine/core";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import type { SubmitEvent } from "react";

import { errorAt } from "@/api/problem";
import type { NotificationPreferences } from "@/api/types";
import { Panel } from "@/components/panel";
import { ProblemNotice } from "@/components/problem-notice";
import { alertKeys, changePreferences, preferencesQuery } from "@/features/alerts/api/alerts";
import { fieldsOf } from "@/lib/form";

const LEVELS = [
  { value: "info", label: "All alerts" },
  { value: "warning", label: "Warnings and critical alerts" },
  { value: "critical", label: "Critical alerts" },
  { value: "never", label: "Nothing" },
];

function mailHint(preferences: NotificationPreferences): string {
  if (!preferences.mail_is_on) return "This platform has no mail server: you are notified in the inbox only.";
  return preferences.email === "" ? "Your account has no email address." : `Mails are sent to ${preferences.email}.`;
}

export function PreferencesPanel() {
  const client = useQueryClient();
  const preferences = useQuery(preferencesQuery());
  const change = useMutation({
    mutationFn: changePreferences,
    onSuccess: (saved) => client.setQueryData(alertKeys.preferences, saved),
  });
  const found = preferences.data;
  const submit = (event: SubmitEvent<HTMLFormElement>) => {
    const field = fieldsOf(event);
    change.mutate({
      mail_from: field("mail_from") as NotificationPreferences["mail_from"],
      time_zone: field("time_zone"),
      quiet_from: field("quiet_from") || null,
      quiet_until: field("quiet_until") || null,
      digest_at: field("digest_at") || null,
      critical_immediately: field("critical_immediately") === "on",
    });
  };
  return (
    <Panel title="Mail preferences">
      {preferences.error ? <ProblemNotice error={preferences.error} /> : null}
      {found ? (
        <form onSubmit={submit}>
          <Stack>
            <Text size="sm" c="dimmed">
              {mailHint(found)}
            </Text>
            <Group grow align="flex-start">
              <NativeSelect name="mail_from" label="Mail" data={LEVELS} defaultValue={found.mail_from} />
              <TextInput name="time_zone" label="Time zone" defaultValue={found.time_zone} error={errorAt(change.error, "/time_zone")} />
            </Group>
            <Group grow align="flex-start">
              <TextInput type="time" name="quiet_from" label="Quiet from" defaultValue={found.quiet_from ?? ""} error={errorAt(change.error, "/quiet_from")} />
              <TextInput type="time" name="quiet_until" label="Quiet until" defaultValue={found.quiet_until ?? ""} error={errorAt(change.error, "/quiet_until")} />
              <TextInput type="time" name="digest_at" label="One mail a day at" defaultValue={found.digest_at ?? ""} error={errorAt(change.error, "/digest_at")} />
            </Group>
            <Switch
              name="critical_immediately"
              label="Critical alerts do not wait"
              defaultChecked={found.critical_immediately}
            />
            {change.error ? <ProblemNotice error={change.error} /> : null}
            <Group>
              <Button type="submit" loading={change.isPending}>
                Save
              </Button>
              {change.isSuccess ? <Text size="sm">Saved</Text> : null}
            </Group>
          </Stack>
        </form>
      ) : null}
    </Panel>
  );
}
