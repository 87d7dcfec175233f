import { Button, Skeleton, Stack, Switch, Tabs, Text } from "@mantine/core";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { lazy, Suspense } from "react";
import { useParams, useSearchParams } from "react-router";

import type { FullCluster } from "@/api/types";
import { Notice } from "@/components/notice";
import { Page } from "@/components/page";
import { PageSkeleton } from "@/components/page-skeleton";
import { Panel } from "@/components/panel";
import { Pill } from "@/components/pill";
import { ProblemNotice } from "@/components/problem-notice";
import { changeCluster, clusterKeys, clusterQuery, syncTeams } from "@/features/clusters/api/clusters";
import { CapacityLine } from "@/features/clusters/components/capacity-line";
import { HealthCheckPanel } from "@/features/clusters/components/health-check-panel";
import { NodesPanel } from "@/features/clusters/components/nodes-panel";
import { PoolsPanel } from "@/features/clusters/components/pools-panel";
import { PreflightSettings } from "@/features/clusters/components/preflight-settings";
import { HealthHistoryPanel } from "@/features/clusters/components/health-history-panel";
import { QueuePanel } from "@/features/clusters/components/queue-panel";
import { clusterCondition } from "@/features/clusters/lib/condition";
import { chunk } from "@/lib/chunk";

// The editor is the largest part of the dashboard.
const ConfigTab = lazy(() =>
  chunk(async () => ({ default: (await import("@/features/clusters/components/config-tab")).ConfigTab })),
);

const TABS = {
  overview: "Overview",
  nodes: "Nodes",
  queue: "Queue",
  configuration: "Configuration",
  history: "Health checks",
};

export function ClusterPage() {
  const { clusterId = "" } = useParams();
  const client = useQueryClient();
  const query = useQuery(clusterQuery(clusterId));
  const [search, setSearch] = useSearchParams();
  const refresh = () => client.invalidateQueries({ queryKey: clusterKeys.all });
  const change = useMutation({
    mutationFn: (enabled: boolean) => changeCluster(clusterId, { enabled }, query.data?.tag ?? ""),
    onSettled: refresh,
  });
  const sync = useMutation({ mutationFn: () => syncTeams(clusterId) });
  const cluster = query.data?.cluster;
  if (!cluster) return <PageSkeleton title="Cluster" error={query.error} onRetry={() => void query.refetch()} />;
  const condition = clusterCondition(cluster);
  const setup = cluster.setup;
  const lead = (
    <>
      <Pill tone={condition.tone}>{condition.text}</Pill> {cluster.kind}, {cluster.nodes.ready} of{" "}
      {cluster.nodes.total} nodes ready
    </>
  );
  const actions = setup ? (
    <>
      {setup.capabilities.includes("sync_teams") ? (
        <Button variant="default" loading={sync.isPending} onClick={() => sync.mutate()}>
          Sync teams
        </Button>
      ) : null}
      <Switch
        label="Admits jobs"
        checked={cluster.enabled}
        disabled={change.isPending}
        onChange={() => change.mutate(!cluster.enabled)}
      />
    </>
  ) : null;
  const tab = setup && search.get("tab") ? (search.get("tab") ?? "overview") : "overview";
  const problem = query.error ?? change.error ?? sync.error;
  return (
    <Page title={cluster.name} lead={lead} actions={actions}>
      {problem ? <ProblemNotice error={problem} onRetry={() => void query.refetch()} /> : null}
      {sync.data ? (
        <Notice
          tone="good"
          title={sync.data.changes.length > 0 ? "Teams updated" : "All teams are up to date"}
          urgent
        >
          {sync.data.changes.map((line) => (
            <p key={line}>{line}</p>
          ))}
        </Notice>
      ) : null}
      {setup === null ? (
        <Overview cluster={cluster} />
      ) : (
        <Tabs
          value={tab}
          onChange={(next) => setSearch(next && next !== "overview" ? { tab: next } : {}, { replace: true })}
          keepMounted={false}
        >
          <Tabs.List>
            {Object.entries(TABS).map(([name, text]) => (
              <Tabs.Tab key={name} value={name}>
                {text}
              </Tabs.Tab>
            ))}
          </Tabs.List>
          <Stack pt="lg" gap="lg">
            <Tabs.Panel value="overview">
              <Overview cluster={cluster} />
            </Tabs.Panel>
            <Tabs.Panel value="nodes">
              <Stack gap="lg">
                <NodesPanel cluster={cluster} />
                <PreflightSettings clusterId={cluster.id} tag={query.data?.tag ?? ""} setup={setup} />
              </Stack>
            </Tabs.Panel>
            <Tabs.Panel value="queue">
              <QueuePanel clusterId={cluster.id} />
            </Tabs.Panel>
            <Tabs.Panel value="configuration">
              <Suspense fallback={<Skeleton height={320} aria-busy="true" />}>
                <ConfigTab cluster={cluster} tag={query.data?.tag ?? ""} setup={setup} />
              </Suspense>
            </Tabs.Panel>
            <Tabs.Panel value="history">
              <HealthHistoryPanel clusterId={cluster.id} />
            </Tabs.Panel>
          </Stack>
        </Tabs>
      )}
    </Page>
  );
}

function Overview({ cluster }: { cluster: FullCluster }) {
  return (
    <Stack gap="lg">
      {cluster.enabled ? null : (
        <Notice tone="waiting" title="No new jobs are admitted here">
          <p>Running jobs continue. Queued jobs that name this cluster wait, and new ones are refused.</p>
        </Notice>
      )}
      {cluster.setup ? <HealthCheckPanel clusterId={cluster.id} setup={cluster.setup} /> : null}
      <Panel title="Slots of the nodes">
        {cluster.capacity.length > 0 ? (
          <CapacityLine cluster={cluster} />
        ) : (
          <Text size="sm" c="dimmed">
            The nodes are unknown.
          </Text>
        )}
      </Panel>
      <PoolsPanel cluster={cluster} />
    </Stack>
  );
}
