import { Button, Group, Modal, NativeSelect, Stack, TextInput } from "@mantine/core";
import { useDisclosure } from "@mantine/hooks";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import type { SubmitEvent } from "react";

import { teamKeys } from "@/api/teams";
import type { Invitation, Role } from "@/api/types";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { EmptyState } from "@/components/empty-state";
import { Moment } from "@/components/moment";
import { Panel } from "@/components/panel";
import { Pill } from "@/components/pill";
import { ProblemNotice } from "@/components/problem-notice";
import { ShownOnce } from "@/components/shown-once";
import { invitationsQuery, invite, offerMembership, revokeInvitation } from "@/features/team/api/team";
import { isRole, ROLES } from "@/features/team/lib/roles";
import { fieldsOf } from "@/lib/form";
import type { Tone } from "@/lib/status";
import { useNow } from "@/lib/use-now";

function condition(row: Invitation, now: number): { text: string; tone: Tone } {
  if (row.accepted_at !== null) return { text: `Accepted by ${row.accepted_by ?? "somebody"}`, tone: "good" };
  if (row.declined_at !== null) return { text: "Declined", tone: "muted" };
  if (row.revoked_at !== null) return { text: "Revoked", tone: "muted" };
  if (Date.parse(row.expires_at) <= now) return { text: "Expired", tone: "muted" };
  return { text: "Open", tone: "waiting" };
}

export function InvitationsPanel({ teamId }: { teamId: string }) {
  const client = useQueryClient();
  const invitations = useQuery(invitationsQuery(teamId));
  const [inviting, { open, close }] = useDisclosure(false);
  const now = useNow(true, 10_000);
  const refresh = () => client.invalidateQueries({ queryKey: teamKeys.of(teamId, "invitations") });
  const revoke = useMutation({ mutationFn: (row: Invitation) => revokeInvitation(row.id), onSettled: refresh });
  const make = useMutation({
    mutationFn: ({ role, note }: { role: Role; note: string }) => invite(teamId, role, note),
    onSettled: refresh,
  });
  const offer = useMutation({
    mutationFn: ({ role, username }: { role: Role; username: string }) => offerMembership(teamId, username, role),
    onSuccess: close,
    onSettled: refresh,
  });
  const submit = (event: SubmitEvent<HTMLFormElement>) => {
    const field = fieldsOf(event);
    const role = field("role");
    const username = field("username");
    if (!isRole(role)) return;
    if (username === "") make.mutate({ role, note: field("note") });
    else offer.mutate({ role, username });
  };
  // The link leaves the memory of the page with the dialog.
  const done = () => {
    make.reset();
    offer.reset();
    close();
  };
  const columns: Column<Invitation>[] = [
    { name: "Invited", cell: (row) => row.username || row.note || "anybody with the link" },
    { name: "Role", cell: (row) => row.role },
    {
      name: "State",
      cell: (row) => {
        const state = condition(row, now);
        return <Pill tone={state.tone}>{state.text}</Pill>;
      },
    },
    { name: "Created by", quiet: true, cell: (row) => row.created_by },
    { name: "Expires", quiet: true, cell: (row) => <Moment time={row.expires_at} /> },
    {
      name: "(Revoke)",
      end: true,
      cell: (row) =>
        condition(row, now).text === "Open" ? (
          <Button size="compact-sm" variant="subtle" color="red" onClick={() => revoke.mutate(row)}>
            Revoke
          </Button>
        ) : null,
    },
  ];
  const tools = (
    <Button size="compact-sm" variant="default" onClick={open}>
      Invite a member
    </Button>
  );
  const problem = invitations.error ?? revoke.error;
  return (
    <Panel title="Invitations" tools={tools} flush>
      {problem ? <ProblemNotice error={problem} onRetry={() => void invitations.refetch()} /> : null}
      {invitations.data?.items.length === 0 ? (
        <EmptyState title="No pending invitations">
          A link works once and expires after three days. A user invited by name answers on their page Team.
        </EmptyState>
      ) : null}
      {invitations.data && invitations.data.items.length > 0 ? (
        <DataTable label="Invitations" rows={invitations.data.items} columns={columns} rowKey={(row) => row.id} />
      ) : null}
      <Modal
        opened={inviting}
        onClose={done}
        title={make.data ? "Send this link" : "Invite a member"}
        centered
        closeOnClickOutside={!make.data}
      >
        {make.data ? (
          <ShownOnce secret={make.data.url} onDone={done}>
            It is shown once and works once, for the first person who opens it.
          </ShownOnce>
        ) : (
          <form onSubmit={submit}>
            <Stack>
              <TextInput
                name="username"
                label="Username"
                description="Username of an existing account; the user accepts on their page Team. Leave empty to create a link."
                maxLength={150}
                data-autofocus
              />
              <TextInput name="note" label="Note on the link" description="Who the link is for" maxLength={200} />
              <NativeSelect name="role" label="Role" data={ROLES} defaultValue="member" />
              {make.error ? <ProblemNotice error={make.error} /> : null}
              {offer.error ? <ProblemNotice error={offer.error} /> : null}
              <Group justify="flex-end">
                <Button variant="default" onClick={done}>
                  Back
                </Button>
                <Button type="submit" loading={make.isPending || offer.isPending}>
                  Invite
                </Button>
              </Group>
            </Stack>
          </form>
        )}
      </Modal>
    </Panel>
  );
}
