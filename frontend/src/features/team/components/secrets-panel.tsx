import { Button, Group, Modal, PasswordInput, Stack, Text, TextInput } from "@mantine/core";
import { useDisclosure } from "@mantine/hooks";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import type { SubmitEvent } from "react";
import { useState } from "react";

import { teamKeys } from "@/api/teams";
import type { NewSecret, Secret } from "@/api/types";
import { Confirm } from "@/components/confirm";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { EmptyState } from "@/components/empty-state";
import { Moment } from "@/components/moment";
import { Panel } from "@/components/panel";
import { ProblemNotice } from "@/components/problem-notice";
import { deleteSecret, putSecret, secretsQuery } from "@/features/team/api/team";
import { DestinationsDialog, DestinationsInput } from "@/features/team/components/destinations-dialog";
import { fieldsOf } from "@/lib/form";

function variableOf(name: string): string {
  return `ATHANOR_JOB_SECRET_${name.replaceAll("-", "_").toUpperCase()}`;
}

export function SecretsPanel({ teamId, manages }: { teamId: string; manages: boolean }) {
  const client = useQueryClient();
  const secrets = useQuery(secretsQuery(teamId));
  const [setting, { open, close: closeDialog }] = useDisclosure(false);
  const [destinations, setDestinations] = useState<string[]>([]);
  const [changed, setChanged] = useState<Secret | null>(null);
  const [doomed, setDoomed] = useState<Secret | null>(null);
  const refresh = () => client.invalidateQueries({ queryKey: teamKeys.of(teamId, "secrets") });
  const put = useMutation({
    mutationFn: (secret: NewSecret) => putSecret(teamId, secret),
    onSuccess: () => close(),
    onSettled: refresh,
  });
  const close = () => {
    put.reset();
    setDestinations([]);
    closeDialog();
  };
  const remove = useMutation({
    mutationFn: (secret: Secret) => deleteSecret(secret.id),
    onSuccess: () => setDoomed(null),
    onSettled: refresh,
  });
  const submit = (event: SubmitEvent<HTMLFormElement>) => {
    const field = fieldsOf(event);
    const chosen = destinations.length > 0 ? { destinations } : {}; // of a secret that is replaced, they stay
    put.mutate({ name: field("name"), value: field("value"), ...chosen });
  };
  const columns: Column<Secret>[] = [
    { name: "Name", cell: (secret) => <span className="mono">{secret.name}</span> },
    { name: "Variable in jobs", quiet: true, cell: (secret) => <span className="mono">{variableOf(secret.name)}</span> },
    {
      name: "Destinations",
      cell: (secret) => <span className="mono">{secret.destinations.join(", ") || "no server"}</span>,
    },
    { name: "Updated by", quiet: true, cell: (secret) => secret.updated_by ?? "somebody who is gone" },
    { name: "Updated", quiet: true, cell: (secret) => <Moment time={secret.updated_at} /> },
    ...(manages
      ? [
          {
            name: "(Destinations)",
            end: true,
            cell: (secret: Secret) => (
              <Button
                size="compact-sm"
                variant="subtle"
                onClick={() => setChanged(secret)}
                aria-label={`Destinations of ${secret.name}`}
              >
                Destinations
              </Button>
            ),
          },
          {
            name: "(Delete)",
            end: true,
            cell: (secret: Secret) => (
              <Button
                size="compact-sm"
                variant="subtle"
                color="red"
                onClick={() => setDoomed(secret)}
                aria-label={`Delete ${secret.name}`}
              >
                Delete
              </Button>
            ),
          },
        ]
      : []),
  ];
  const tools = manages ? (
    <Button size="compact-sm" variant="default" onClick={open}>
      Set a secret
    </Button>
  ) : null;
  return (
    <Panel title="Secrets" tools={tools} flush>
      {secrets.error ? <ProblemNotice error={secrets.error} onRetry={() => void secrets.refetch()} /> : null}
      {secrets.data?.items.length === 0 ? (
        <EmptyState title="No secrets">
          Such as a hub token: set once, never shown again, and referenced under <code>secrets</code> in a spec.
        </EmptyState>
      ) : null}
      {secrets.data && secrets.data.items.length > 0 ? (
        <DataTable label="Secrets" rows={secrets.data.items} columns={columns} rowKey={(row) => row.id} />
      ) : null}
      <Modal opened={setting} onClose={close} title="Set a secret" centered>
        <form onSubmit={submit} autoComplete="off">
          <Stack>
            <TextInput
              name="name"
              label="Name"
              description="Lower case, digits and dashes, such as hf-token. An existing secret of the same name is replaced."
              required
              withAsterisk={false}
              maxLength={63}
              data-autofocus
            />
            <PasswordInput name="value" label="Value" required withAsterisk={false} autoComplete="new-password" />
            <DestinationsInput value={destinations} onChange={setDestinations} error={put.error} />
            {put.error ? <ProblemNotice error={put.error} /> : null}
            <Group justify="flex-end">
              <Button variant="default" onClick={close}>
                Back
              </Button>
              <Button type="submit" loading={put.isPending}>
                Set secret
              </Button>
            </Group>
          </Stack>
        </form>
      </Modal>
      {changed ? <DestinationsDialog teamId={teamId} secret={changed} onClose={() => setChanged(null)} /> : null}
      <Confirm
        opened={doomed !== null}
        title={`Delete ${doomed?.name ?? ""}?`}
        yes="Delete it"
        no="Keep it"
        busy={remove.isPending}
        error={remove.error}
        onYes={() => {
          if (doomed) remove.mutate(doomed);
        }}
        onNo={() => setDoomed(null)}
      >
        <Text size="sm">Running jobs keep what they were given; those that start later go without it.</Text>
      </Confirm>
    </Panel>
  );
}
