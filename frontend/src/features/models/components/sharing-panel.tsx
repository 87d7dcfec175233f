import { Button, Group, List, Stack, Text, TextInput } from "@mantine/core";
import { notifications } from "@mantine/notifications";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import type { SubmitEvent } from "react";
import { useState } from "react";

import { sessionQuery } from "@/api/session";
import type { RegisteredModel } from "@/api/types";
import { Confirm } from "@/components/confirm";
import { Panel } from "@/components/panel";
import { ProblemNotice } from "@/components/problem-notice";
import { grantsQuery, modelsKey, share, stopSharing } from "@/features/models/api/models";
import { fieldsOf } from "@/lib/form";

/** Which other teams may read a model of one's own; administrators of its team change it. */
export function SharingPanel({ model }: { model: RegisteredModel }) {
  const client = useQueryClient();
  const session = useQuery(sessionQuery());
  const grants = useQuery(grantsQuery(model.id));
  const [ending, setEnding] = useState<string | null>(null);
  const isAdmin = session.data?.teams.some((team) => team.id === model.team.id && team.role === "admin") ?? false;
  const refresh = () => void client.invalidateQueries({ queryKey: modelsKey });
  const add = useMutation({
    mutationFn: (team: string) => share(model.id, team),
    onSuccess: (made) => {
      notifications.show({ message: `${made.team.name} can read ${model.name}.` });
      refresh();
    },
  });
  const end = useMutation({
    mutationFn: (team: string) => stopSharing(model.id, team),
    onSuccess: (_, team) => {
      notifications.show({ message: `${model.name} is no longer shared with ${team}.` });
      setEnding(null);
      refresh();
    },
  });
  const send = (event: SubmitEvent<HTMLFormElement>) => add.mutate(fieldsOf(event)("team").trim());
  const rows = grants.data?.items ?? [];
  return (
    <Panel title="Shared with">
      <Stack>
        {grants.error ? <ProblemNotice error={grants.error} onRetry={() => void grants.refetch()} /> : null}
        {rows.length > 0 ? (
          <List size="sm" listStyleType="none">
            {rows.map(({ team }) => (
              <List.Item key={team.id}>
                <Group gap="xs">
                  {team.name}
                  {isAdmin ? (
                    <Button
                      variant="subtle"
                      size="compact-xs"
                      color="red"
                      onClick={() => setEnding(team.name)}
                      aria-label={`Stop sharing with ${team.name}`}
                    >
                      Stop sharing
                    </Button>
                  ) : null}
                </Group>
              </List.Item>
            ))}
          </List>
        ) : null}
        {grants.data && rows.length === 0 ? (
          <Text size="sm" c="dimmed">
            No other team.
          </Text>
        ) : null}
        {isAdmin ? (
          <form onSubmit={send}>
            <Group align="end">
              <TextInput
                name="team"
                label="Team"
                description="Its members can see, download and start jobs from all versions, also later ones."
                required
                withAsterisk={false}
              />
              <Button type="submit" variant="default" loading={add.isPending}>
                Share
              </Button>
            </Group>
          </form>
        ) : null}
        {add.error ? <ProblemNotice error={add.error} /> : null}
      </Stack>
      {ending === null ? null : (
        <Confirm
          opened
          title={`Stop sharing ${model.name} with ${ending}?`}
          yes="Stop sharing"
          no="Cancel"
          busy={end.isPending}
          error={end.error}
          onYes={() => end.mutate(ending)}
          onNo={() => setEnding(null)}
        >
          <Text size="sm">
            No further job of the team starts from it. A running one that has loaded it continues, and what was
            downloaded stays with the team.
          </Text>
        </Confirm>
      )}
    </Panel>
  );
}
