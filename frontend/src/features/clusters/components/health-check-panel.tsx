import { Button, Group, Text } from "@mantine/core";
import { useMutation, useQueryClient } from "@tanstack/react-query";

import type { ClusterSetup } from "@/api/types";
import { EmptyState } from "@/components/empty-state";
import { Panel } from "@/components/panel";
import { ProblemNotice } from "@/components/problem-notice";
import { TimeAgo } from "@/components/time-ago";
import { clusterKeys, checkHealth } from "@/features/clusters/api/clusters";
import { FindingsTable } from "@/features/clusters/components/findings-table";
import { useNow } from "@/lib/use-now";

export function HealthCheckPanel({ clusterId, setup }: { clusterId: string; setup: ClusterSetup }) {
  const client = useQueryClient();
  const now = useNow(true, 5_000);
  const check = useMutation({
    mutationFn: () => checkHealth(clusterId),
    onSettled: () => client.invalidateQueries({ queryKey: clusterKeys.all }),
  });
  const probe = setup.probe;
  const tools = setup.capabilities.includes("probe") ? (
    <Group gap="sm">
      {probe ? (
        <Text size="sm" c="dimmed">
          {probe.version} <TimeAgo time={probe.seen_at} now={now} />
        </Text>
      ) : null}
      <Button size="compact-sm" variant="default" loading={check.isPending} onClick={() => check.mutate()}>
        Run health check
      </Button>
    </Group>
  ) : null;
  return (
    <Panel title="Health check" tools={tools} flush>
      {check.error ? <ProblemNotice error={check.error} /> : null}
      {probe ? (
        <FindingsTable findings={probe.findings} />
      ) : (
        <EmptyState title="No health check yet">
          {setup.capabilities.includes("probe")
            ? "Health checks run every ten minutes, or now if you request one."
            : "Clusters of this kind have no health check."}
        </EmptyState>
      )}
    </Panel>
  );
}
