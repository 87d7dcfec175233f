import { Group, NativeSelect, Switch } from "@mantine/core";
import { useMutation, useQueryClient } from "@tanstack/react-query";

import type { ClusterSetup } from "@/api/types";
import { Panel } from "@/components/panel";
import { ProblemNotice } from "@/components/problem-notice";
import type { ClusterChanges } from "@/features/clusters/api/clusters";
import { changeCluster, clusterKeys } from "@/features/clusters/api/clusters";

const HOURS = [
  { value: "", label: "Never" },
  { value: "6", label: "Every 6 hours" },
  { value: "24", label: "Every day" },
  { value: "168", label: "Every week" },
];

interface PreflightSettingsProps {
  clusterId: string;
  tag: string;
  setup: ClusterSetup;
}

/** When free nodes of a cluster are measured without a job. */
export function PreflightSettings({ clusterId, tag, setup }: PreflightSettingsProps) {
  const client = useQueryClient();
  const change = useMutation({
    mutationFn: (changes: ClusterChanges) => changeCluster(clusterId, changes, tag),
    onSettled: () => client.invalidateQueries({ queryKey: clusterKeys.all }),
  });
  const hours = String(setup.preflight_every_hours ?? "");
  const known = HOURS.some((each) => each.value === hours);
  const choices = known ? HOURS : [...HOURS, { value: hours, label: `Every ${hours} hours` }];
  return (
    <Panel title="Preflights of free nodes">
      {change.error ? <ProblemNotice error={change.error} /> : null}
      <Group gap="xl" align="end">
        <Switch
          label="After incidents"
          description="Once, when the node is free and no job waits for its pool"
          checked={setup.preflight_after_incidents}
          disabled={change.isPending}
          onChange={() => change.mutate({ preflight_after_incidents: !setup.preflight_after_incidents })}
        />
        <NativeSelect
          label="At an interval"
          data={choices}
          value={hours}
          disabled={change.isPending}
          onChange={(event) => {
            const chosen = event.currentTarget.value;
            change.mutate({ preflight_every_hours: chosen === "" ? null : Number(chosen) });
          }}
        />
      </Group>
    </Panel>
  );
}
