import { Button, NativeSelect, Text } from "@mantine/core";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";

import type { Member, Role } from "@/api/types";
import { Confirm } from "@/components/confirm";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { Panel } from "@/components/panel";
import { ProblemNotice } from "@/components/problem-notice";
import { membersQuery, removeMember, setRole, teamKeys } from "@/features/team/api/team";
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
  const refresh = () => client.invalidateQueries({ queryKey: teamKeys.of(teamId, "members") });
  const change = useMutation({
    mutationFn: ({ member, role }: { member: Member; role: Role }) => setRole(teamId, member.user_id, role),
    onSettled: refresh,
  });
  const remove = useMutation({
    mutationFn: (member: Member) => removeMember(teamId, member.user_id),
    onSuccess: () => setDoomed(null),
    onSettled: refresh,
  });
  const columns: Column<Member>[] = [
    {
      name: "Name",
      cell: (member) => (
        <Text size="sm" fw={550} component="span">
          {member.username}
          {member.user_id === ownId ? " (you)" : ""}
        </Text>
      ),
    },
    { name: "Address", quiet: true, cell: (member) => member.email || "none" },
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
    ...(manages
      ? [
          {
            name: "(Remove)",
            end: true,
            cell: (member: Member) => (
              <Button
                size="compact-sm"
                variant="subtle"
                color="red"
                onClick={() => setDoomed(member)}
                aria-label={`Remove ${member.username}`}
              >
                Remove
              </Button>
            ),
          },
        ]
      : []),
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
        title={`Remove ${doomed?.username ?? ""} from the team?`}
        yes="Remove them"
        no="Keep them"
        busy={remove.isPending}
        error={remove.error}
        onYes={() => {
          if (doomed) remove.mutate(doomed);
        }}
        onNo={() => setDoomed(null)}
      >
        <Text size="sm">Their tokens for this team stop working at once. Their jobs stay.</Text>
      </Confirm>
    </Panel>
  );
}
