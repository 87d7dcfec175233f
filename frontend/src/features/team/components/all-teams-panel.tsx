import { Anchor, Button } from "@mantine/core";
import { useDisclosure } from "@mantine/hooks";
import { notifications } from "@mantine/notifications";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";

import { certificateAddress, deletionsQuery } from "@/api/deletions";
import { teamKeys } from "@/api/teams";
import type { Deletion, TeamOfPlatform } from "@/api/types";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { DeleteButton } from "@/components/delete-button";
import { Moment } from "@/components/moment";
import { NameDialog } from "@/components/name-dialog";
import { Panel } from "@/components/panel";
import { ProblemNotice } from "@/components/problem-notice";
import { allTeamsQuery, createTeam } from "@/features/team/api/team";

const TEAMS: Column<TeamOfPlatform>[] = [
  { name: "Name", cell: (team) => team.name },
  { name: "Created", quiet: true, cell: (team) => <Moment time={team.created_at} /> },
  {
    name: "(Delete)",
    end: true,
    cell: (team) => <DeleteButton collection="teams" id={team.id} name={`team ${team.name}`} />,
  },
];

const ERASED: Column<Deletion>[] = [
  { name: "Name", cell: (row) => row.name },
  { name: "Deleted by", cell: (row) => row.deleted_by },
  {
    name: "State",
    end: true,
    cell: (row) =>
      row.state === "purged" ? (
        <Anchor href={certificateAddress(row.id)} download={`erasure-of-${row.name}.json`} size="sm">
          Certificate of erasure
        </Anchor>
      ) : (
        "Being erased"
      ),
  },
];

/** All teams of the platform, which its administrators delete here, and those that are erased. */
export function AllTeamsPanel() {
  const teams = useQuery(allTeamsQuery());
  const deletions = useQuery(deletionsQuery());
  const [naming, { open, close }] = useDisclosure(false);
  const client = useQueryClient();
  const create = useMutation({
    mutationFn: createTeam,
    onSuccess: (team) => {
      close();
      notifications.show({ message: `Team ${team.name} is created. Add its members, or invite them.`, color: "teal" });
    },
    onSettled: () => client.invalidateQueries({ queryKey: teamKeys.all }),
  });
  const tools = (
    <Button size="compact-sm" variant="default" onClick={open}>
      New team
    </Button>
  );
  const erased = (deletions.data?.items ?? []).filter(
    (row) => row.kind === "team" && (row.state === "purged" || row.state === "purging"),
  );
  return (
    <>
      <Panel title="All teams" tools={tools} flush>
        {teams.error ? <ProblemNotice error={teams.error} onRetry={() => void teams.refetch()} /> : null}
        {teams.data ? (
          <DataTable label="All teams" rows={teams.data.items} columns={TEAMS} rowKey={(row) => row.id} />
        ) : null}
      </Panel>
      {naming ? (
        <NameDialog
          title="New team"
          description="Unique on the platform"
          pattern="[A-Za-z0-9_\-]+"
          rule="Letters, digits, hyphen and underscore"
          maxLength={63}
          busy={create.isPending}
          error={create.error}
          onCreate={(name) => create.mutate(name)}
          onClose={() => {
            create.reset();
            close();
          }}
        />
      ) : null}
      {erased.length > 0 ? (
        <Panel title="Erased teams" flush>
          <DataTable label="Erased teams" rows={erased} columns={ERASED} rowKey={(row) => row.id} />
        </Panel>
      ) : null}
    </>
  );
}
