import { Button, Group, Modal, NativeSelect, Stack, Text, TextInput } from "@mantine/core";
import { useDisclosure } from "@mantine/hooks";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import type { SubmitEvent } from "react";
import { useState } from "react";

import { teamKeys } from "@/api/teams";
import type { Role, ServiceAccount } from "@/api/types";
import { Confirm } from "@/components/confirm";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { EmptyState } from "@/components/empty-state";
import { Moment } from "@/components/moment";
import { Panel } from "@/components/panel";
import { ProblemNotice } from "@/components/problem-notice";
import { ShownOnce } from "@/components/shown-once";
import {
  createServiceAccount,
  issueServiceToken,
  retireServiceAccount,
  serviceAccountsQuery,
} from "@/features/team/api/team";
import { isRole, ROLES } from "@/features/team/lib/roles";
import { fieldsOf } from "@/lib/form";

export function ServiceAccountsPanel({ teamId }: { teamId: string }) {
  const client = useQueryClient();
  const accounts = useQuery(serviceAccountsQuery(teamId));
  const [making, { open, close }] = useDisclosure(false);
  const [doomed, setDoomed] = useState<ServiceAccount | null>(null);
  const refresh = () => client.invalidateQueries({ queryKey: [...teamKeys.all, teamId] });
  const make = useMutation({
    mutationFn: ({ name, role }: { name: string; role: Role }) => createServiceAccount(teamId, name, role),
    onSuccess: close,
    onSettled: refresh,
  });
  const issue = useMutation({
    mutationFn: (account: ServiceAccount) => issueServiceToken(account.id, account.username),
  });
  const retire = useMutation({
    mutationFn: (account: ServiceAccount) => retireServiceAccount(account.id),
    onSuccess: () => setDoomed(null),
    onSettled: refresh,
  });
  const submit = (event: SubmitEvent<HTMLFormElement>) => {
    const field = fieldsOf(event);
    const role = field("role");
    if (isRole(role)) make.mutate({ name: field("name"), role });
  };
  const columns: Column<ServiceAccount>[] = [
    { name: "Name", cell: (account) => <span className="mono">{account.username}</span> },
    { name: "Created", quiet: true, cell: (account) => <Moment time={account.created_at} /> },
    {
      name: "(Actions)",
      end: true,
      cell: (account) => (
        <Group gap={4} justify="flex-end" wrap="nowrap">
          <Button
            size="compact-sm"
            variant="subtle"
            onClick={() => issue.mutate(account)}
            aria-label={`New token of ${account.username}`}
          >
            New token
          </Button>
          <Button
            size="compact-sm"
            variant="subtle"
            color="red"
            onClick={() => setDoomed(account)}
            aria-label={`Retire ${account.username}`}
          >
            Retire
          </Button>
        </Group>
      ),
    },
  ];
  const tools = (
    <Button size="compact-sm" variant="default" onClick={open}>
      New service account
    </Button>
  );
  const problem = accounts.error ?? issue.error;
  return (
    <Panel title="Service accounts" tools={tools} flush>
      {problem ? <ProblemNotice error={problem} onRetry={() => void accounts.refetch()} /> : null}
      {accounts.data?.items.length === 0 ? (
        <EmptyState title="No service accounts">
          For pipelines: they have tokens and no password, and remain when people leave.
        </EmptyState>
      ) : null}
      {accounts.data && accounts.data.items.length > 0 ? (
        <DataTable label="Service accounts" rows={accounts.data.items} columns={columns} rowKey={(row) => row.id} />
      ) : null}
      <Modal opened={making} onClose={close} title="New service account" centered>
        <form onSubmit={submit}>
          <Stack>
            <TextInput name="name" label="Name" required withAsterisk={false} maxLength={40} data-autofocus />
            <NativeSelect name="role" label="Role" data={ROLES} defaultValue="member" />
            {make.error ? <ProblemNotice error={make.error} /> : null}
            <Group justify="flex-end">
              <Button variant="default" onClick={close}>
                Back
              </Button>
              <Button type="submit" loading={make.isPending}>
                Create
              </Button>
            </Group>
          </Stack>
        </form>
      </Modal>
      <Modal
        opened={issue.data !== undefined}
        onClose={issue.reset}
        title="Copy the token now"
        centered
        closeOnClickOutside={false}
      >
        <ShownOnce secret={issue.data?.token ?? ""} onDone={issue.reset}>
          It is shown once: the server stores only a hash of it.
        </ShownOnce>
      </Modal>
      <Confirm
        opened={doomed !== null}
        title={`Retire ${doomed?.username ?? ""}?`}
        yes="Retire it"
        no="Keep it"
        busy={retire.isPending}
        error={retire.error}
        onYes={() => {
          if (doomed) retire.mutate(doomed);
        }}
        onNo={() => setDoomed(null)}
      >
        <Text size="sm">All its tokens stop working immediately. This cannot be undone.</Text>
      </Confirm>
    </Panel>
  );
}
