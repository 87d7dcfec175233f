import { Anchor, Button, Text } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { Link } from "react-router";

import { sessionQuery } from "@/api/session";
import type { Cluster } from "@/api/types";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { EmptyState } from "@/components/empty-state";
import { PlusIcon } from "@/components/icons";
import { Page } from "@/components/page";
import { Panel } from "@/components/panel";
import { Pill } from "@/components/pill";
import { ProblemNotice } from "@/components/problem-notice";
import { clustersQuery } from "@/features/clusters/api/clusters";
import { CapacityLine } from "@/features/clusters/components/capacity-line";
import { clusterCondition } from "@/features/clusters/lib/condition";

const COLUMNS: Column<Cluster>[] = [
  {
    name: "Cluster",
    cell: (cluster) => (
      <Anchor component={Link} to={`/clusters/${cluster.id}`} size="sm" fw={550}>
        {cluster.name}
      </Anchor>
    ),
  },
  { name: "Kind", quiet: true, cell: (cluster) => cluster.kind },
  {
    name: "State",
    cell: (cluster) => {
      const condition = clusterCondition(cluster);
      return <Pill tone={condition.tone}>{condition.text}</Pill>;
    },
  },
  {
    name: "Nodes",
    cell: ({ nodes }) => (
      <>
        <Text size="sm" className="numeric">
          {nodes.ready} of {nodes.total} ready
        </Text>
        {nodes.quarantined > 0 ? (
          <Text size="xs" c="dimmed">
            {nodes.quarantined} in quarantine
          </Text>
        ) : null}
      </>
    ),
  },
  { name: "Slots used", cell: (cluster) => <CapacityLine cluster={cluster} /> },
  {
    name: "Pools",
    quiet: true,
    cell: (cluster) =>
      cluster.pools.map((pool) => `${pool.name} (${pool.slots_used}/${pool.slots})`).join(", ") || "none",
  },
];

/** Where jobs can run, and how it is there. */
export function ClustersPage() {
  const clusters = useQuery(clustersQuery());
  const session = useQuery(sessionQuery());
  const operates = session.data?.user?.platform_role === "platform_admin";
  const register = (
    <Button component={Link} to="/clusters/new" leftSection={<PlusIcon size={16} />}>
      Register a cluster
    </Button>
  );
  return (
    <Page title="Clusters" lead="Where jobs run, and how much is free." actions={operates ? register : null}>
      {clusters.error ? (
        <ProblemNotice error={clusters.error} onRetry={() => void clusters.refetch()} />
      ) : null}
      {clusters.data ? (
        <Panel flush>
          {clusters.data.items.length > 0 ? (
            <DataTable
              label="Clusters"
              rows={clusters.data.items}
              columns={COLUMNS}
              rowKey={(cluster) => cluster.id}
            />
          ) : (
            <EmptyState title="No clusters yet">A platform administrator registers them.</EmptyState>
          )}
        </Panel>
      ) : null}
    </Page>
  );
}
