import { Button, Group, NativeSelect, Text } from "@mantine/core";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";

import { membersQuery, teamKeys } from "@/api/teams";
import type { Member, Role } from "@/api/types";
import { Confirm } from "@/components/confirm";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { Panel } from "@/components/panel";
import { ProblemNotice } from "@/components/problem-notice";
import { removeMember, revokeMembersTokens, setRole } from "@/features/team/api/team";
import { isRole, ROLES } from "@/features/team/lib/roles";

interface MembersPanelProps {
  teamId: string;
  manages: boolean;
  ownId: string;
}

export function MembersPanel({ teamId, manages, ownId }: MembersPanelProps) {
  const client = useQueryClient();
  const members = useQuery(membersQuery(teamId));
  const [doomed, setDoomed] = useState<Member | null>(null);
  const [suspected, setSuspected] = useState<Member | null>(null);
  const refresh = () => client.invalidateQueries({ queryKey: teamKeys.of(teamId, "members") });
  const change = useMutation({
    mutationFn: ({ member, role }: { member: Member; role: Role }) => setRole(teamId, member.user_id, role),
    onSettled: refresh,
  });
  const remove = useMutation({
    mutationFn: (member: Member) => removeMember(teamId, member.user_id),
    onSuccess: () => setDoomed(null),
    // A user who leaves sees another team afterwards, or none.
    onSettled: (_data, _error, member) => (member.user_id === ownId ? client.invalidateQueries() : refresh()),
  });
  const revoke = useMutation({
    mutationFn: (member: Member) => revokeMembersTokens(teamId, member.user_id),
    onSuccess: () => setSuspected(null),
  });
  const leaves = doomed?.user_id === ownId;
  const columns: Column<Member>[] = [
    {
      name: "Name",
      cell: (member) => (
        <Text size="sm" fw={550} component="span">
          {member.username}
          {member.user_id === ownId ? " (you)" : ""}
          {member.is_service_account ? " (service account)" : ""}
        </Text>
      ),
    },
    { name: "Email", quiet: true, cell: (member) => member.email || "none" },
    {
      name: "Role",
      cell: (member) =>
        manages ? (
          <NativeSelect
            size="xs"
            aria-label={`Role of ${member.username}`}
            value={member.role}
            data={ROLES}
            onChange={(event) => {
              const role = event.currentTarget.value;
              if (isRole(role)) change.mutate({ member, role });
            }}
          />
        ) : (
          member.role
        ),
    },
    {
      name: "(Actions)",
      end: true,
      cell: (member) => (
        <Group gap={4} justify="flex-end" wrap="nowrap">
          {manages ? (
            <Button
              size="compact-sm"
              variant="subtle"
              onClick={() => setSuspected(member)}
              aria-label={`Revoke the tokens of ${member.username}`}
            >
              Revoke tokens
            </Button>
          ) : null}
          {manages || member.user_id === ownId ? (
            <Button
              size="compact-sm"
              variant="subtle"
              color="red"
              onClick={() => setDoomed(member)}
              aria-label={member.user_id === ownId ? "Leave the team" : `Remove ${member.username}`}
            >
              {member.user_id === ownId ? "Leave" : "Remove"}
            </Button>
          ) : null}
        </Group>
      ),
    },
  ];
  const problem = members.error ?? change.error;
  return (
    <Panel title="Members" flush>
      {problem ? <ProblemNotice error={problem} onRetry={() => void members.refetch()} /> : null}
      {members.data ? (
        <DataTable label="Members" rows={members.data.items} columns={columns} rowKey={(member) => member.user_id} />
      ) : null}
      <Confirm
        opened={doomed !== null}
        title={leaves ? "Leave the team?" : `Remove ${doomed?.username ?? ""} from the team?`}
        yes={leaves ? "Leave" : "Remove"}
        no="Cancel"
        busy={remove.isPending}
        error={remove.error}
        onYes={() => {
          if (doomed) remove.mutate(doomed);
        }}
        onNo={() => setDoomed(null)}
      >
        <Text size="sm">
          {leaves ? "Your" : "Their"} tokens for this team stop working immediately. {leaves ? "Your" : "Their"} jobs stay.
          {doomed?.is_service_account ? " A service account of this team is deactivated." : ""}
        </Text>
      </Confirm>
      <Confirm
        opened={suspected !== null}
        title={`Revoke all tokens of ${suspected?.username ?? ""} for this team?`}
        yes="Revoke all"
        no="Cancel"
        busy={revoke.isPending}
        error={revoke.error}
        onYes={() => {
          if (suspected) revoke.mutate(suspected);
        }}
        onNo={() => setSuspected(null)}
      >
        <Text size="sm">
          Requests with them are refused from now on, and so are requests with tokens that they created. The member stays in the team.
        </Text>
      </Confirm>
    </Panel>
  );
}
