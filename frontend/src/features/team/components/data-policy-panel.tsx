import { Switch } from "@mantine/core";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";

import { teamKeys } from "@/api/teams";
import { Panel } from "@/components/panel";
import { ProblemNotice } from "@/components/problem-notice";
import { setDataPolicy, teamQuery } from "@/features/team/api/team";

/** What a team requires of data that jobs train on. */
export function DataPolicyPanel({ teamId, manages }: { teamId: string; manages: boolean }) {
  const client = useQueryClient();
  const team = useQuery(teamQuery(teamId));
  const change = useMutation({
    mutationFn: (required: boolean) => setDataPolicy(teamId, required),
    onSettled: () => client.invalidateQueries({ queryKey: teamKeys.of(teamId, "settings") }),
  });
  return (
    <Panel title="Data policy">
      {team.error ? <ProblemNotice error={team.error} onRetry={() => void team.refetch()} /> : null}
      {change.error ? <ProblemNotice error={change.error} /> : null}
      {team.data ? (
        <Switch
          label="Require a data report without critical findings"
          description="Jobs that train on other data are refused. Jobs that have started continue."
          checked={team.data.requires_data_report}
          disabled={!manages || change.isPending}
          onChange={(event) => change.mutate(event.currentTarget.checked)}
        />
      ) : null}
    </Panel>
  );
}
