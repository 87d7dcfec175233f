import { Button, Group, NativeSelect, Text, TextInput } from "@mantine/core";
import { useDebouncedValue } from "@mantine/hooks";
import { useInfiniteQuery } from "@tanstack/react-query";
import { useState } from "react";

import type { ClusterNode, FullCluster } from "@/api/types";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { EmptyState } from "@/components/empty-state";
import { Notice } from "@/components/notice";
import { Panel } from "@/components/panel";
import { Pill } from "@/components/pill";
import { ProblemNotice } from "@/components/problem-notice";
import { TimeAgo } from "@/components/time-ago";
import type { NodeFilters } from "@/features/clusters/api/clusters";
import { nodesQuery } from "@/features/clusters/api/clusters";
import { NodeDialog } from "@/features/clusters/components/node-dialog";
import { nodeCondition, scoreReasons, STANDINGS } from "@/features/clusters/lib/condition";
import { bytes } from "@/lib/format";
import { useNow } from "@/lib/use-now";

const TYPING_MS = 300;
const STATES = [
  { value: "", label: "All" },
  { value: "ready", label: "Ready" },
  { value: "drained", label: "Drained" },
  { value: "down", label: "Down" },
  { value: "unknown", label: "Unknown" },
  { value: "quarantined", label: "In quarantine" },
];

function columnsOf(open: (name: string) => void, now: number): Column<ClusterNode>[] {
  return [
    {
      name: "Node",
      cell: (node) => (
        <>
          <Text size="sm" fw={550} component="span" className="mono" style={{ overflowWrap: "anywhere" }}>
            {node.name}
          </Text>
          {node.topology.length > 0 ? (
            <Text size="xs" c="dimmed">
              {node.topology.join(" / ")}
            </Text>
          ) : null}
        </>
      ),
    },
    {
      name: "State",
      cell: (node) => {
        const condition = nodeCondition(node);
        return (
          <>
            <Pill tone={condition.tone}>{condition.text}</Pill>
            <Text size="xs" c="dimmed">
              {node.quarantined_at === null ? node.reason : node.quarantine_reason}
            </Text>
          </>
        );
      },
    },
    { name: "Accelerator", cell: (node) => <span className="mono">{node.accelerator || "–"}</span> },
    {
      name: "Slots used",
      end: true,
      cell: (node) => (
        <span className="numeric">
          {node.slots_used} of {node.slots}
        </span>
      ),
    },
    {
      name: "Score",
      cell: (node) => (
        <>
          <Pill tone={STANDINGS[node.score.standing].tone}>{STANDINGS[node.score.standing].text}</Pill>
          <Text size="xs" c="dimmed">
            {scoreReasons(node)}
          </Text>
        </>
      ),
    },
    { name: "Memory", end: true, quiet: true, cell: (node) => bytes(node.memory_bytes) },
    { name: "Groups", quiet: true, cell: (node) => node.pools.join(", ") || "–" },
    { name: "Last seen", quiet: true, cell: (node) => <TimeAgo time={node.seen_at} now={now} /> },
    {
      name: "(Actions)",
      end: true,
      cell: (node) => (
        <Button
          size="compact-sm"
          variant="subtle"
          aria-label={`Open node ${node.name}`}
          onClick={() => open(node.name)}
        >
          {node.recent_jobs_hit > 0 ? `Open (${node.recent_jobs_hit} jobs hit)` : "Open"}
        </Button>
      ),
    },
  ];
}

/** The nodes of a cluster as it last reported them, with the actions taken on them here. */
export function NodesPanel({ cluster }: { cluster: FullCluster }) {
  const [filters, setFilters] = useState<NodeFilters>({ q: "", state: "" });
  const [asked] = useDebouncedValue(filters, TYPING_MS);
  const [chosen, setChosen] = useState<string | null>(null);
  const now = useNow(true, 5_000);
  const nodes = useInfiniteQuery(nodesQuery(cluster.id, asked));
  const rows = nodes.data?.pages.flatMap((page) => page.items) ?? [];
  const setup = cluster.setup;
  const none = asked.q === "" && asked.state === "";
  return (
    <>
      {setup?.suspects.map((name) => (
        <Notice key={name} tone="waiting" title={`${name} failed several jobs in the last day`}>
          <p>Check its incidents. No new attempt runs on a node in quarantine.</p>
          <Group mt={4}>
            <Button size="compact-sm" variant="default" onClick={() => setChosen(name)}>
              Show incidents of {name}
            </Button>
          </Group>
        </Notice>
      ))}
      {setup?.nodes_problem ? (
        <Notice tone="bad" title="The nodes could not be listed">
          <p>{setup.nodes_problem}</p>
        </Notice>
      ) : null}
      <Group align="flex-end">
        <TextInput
          label="Name"
          value={filters.q}
          onChange={(event) => setFilters({ ...filters, q: event.currentTarget.value })}
        />
        <NativeSelect
          label="State"
          data={STATES}
          value={filters.state}
          onChange={(event) => setFilters({ ...filters, state: event.currentTarget.value })}
        />
      </Group>
      {nodes.error ? <ProblemNotice error={nodes.error} onRetry={() => void nodes.refetch()} /> : null}
      {nodes.data ? (
        <Panel flush>
          {rows.length > 0 ? (
            <DataTable
              label="Nodes"
              rows={rows}
              columns={columnsOf(setChosen, now)}
              rowKey={(node) => node.name}
            />
          ) : (
            <EmptyState title={none ? "No nodes are known" : "No node matches"}>
              {none && setup?.capabilities.includes("nodes") === false
                ? "Clusters of this kind do not report nodes."
                : "The list is refreshed every minute."}
            </EmptyState>
          )}
        </Panel>
      ) : null}
      {nodes.hasNextPage ? (
        <Button
          variant="default"
          style={{ alignSelf: "center" }}
          loading={nodes.isFetchingNextPage}
          onClick={() => void nodes.fetchNextPage()}
        >
          Show more
        </Button>
      ) : null}
      {chosen !== null ? (
        <NodeDialog
          clusterId={cluster.id}
          name={chosen}
          node={rows.find((node) => node.name === chosen)}
          drains={setup?.capabilities.includes("drain") ?? false}
          onClose={() => setChosen(null)}
        />
      ) : null}
    </>
  );
}
