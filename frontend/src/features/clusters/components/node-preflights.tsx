import { Button, Group, Stack, Text, Title } from "@mantine/core";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";

import type { NodePreflight } from "@/api/types";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { Pill } from "@/components/pill";
import { PreflightReportView } from "@/components/preflight-report";
import { ProblemNotice } from "@/components/problem-notice";
import { TimeAgo } from "@/components/time-ago";
import { clusterKeys, nodePreflightsQuery, startPreflight } from "@/features/clusters/api/clusters";
import type { Tone } from "@/lib/status";
import { label } from "@/lib/status";
import { useNow } from "@/lib/use-now";

const TONES: Record<NodePreflight["outcome"], Tone> = {
  "": "active",
  ok: "good",
  slow: "waiting",
  broken: "bad",
  failed: "bad",
  stopped: "muted",
};
const CAUSES: Record<NodePreflight["cause"], string> = {
  incident: "After an incident",
  interval: "At the interval",
  manual: "By hand",
};

/** The newest figures of a node, all its preflights outside jobs, and a button that starts one. */
export function NodePreflights({ clusterId, name }: { clusterId: string; name: string }) {
  const client = useQueryClient();
  const now = useNow(true, 10_000);
  const { data, error } = useQuery(nodePreflightsQuery(clusterId, name));
  const start = useMutation({
    mutationFn: () => startPreflight(clusterId, name),
    onSettled: () => client.invalidateQueries({ queryKey: clusterKeys.preflights(clusterId, name) }),
  });
  const items = data?.items ?? [];
  const isRunning = items.some((each) => each.outcome === "");
  const newest = items.find((each) => each.report !== null)?.report;
  const columns: Column<NodePreflight>[] = [
    { name: "Started", cell: (row) => <TimeAgo time={row.created_at} now={now} /> },
    {
      name: "Result",
      cell: (row) => <Pill tone={TONES[row.outcome]}>{row.outcome === "" ? "Running" : label(row.outcome)}</Pill>,
    },
    { name: "Why", cell: (row) => (row.actor ? `By ${row.actor}` : CAUSES[row.cause]) },
    { name: "Detail", quiet: true, cell: (row) => row.detail || row.report?.findings[0]?.because || "–" },
  ];
  return (
    <Stack gap="sm">
      <Group justify="space-between">
        <Title order={3} size="h5">
          Preflights
        </Title>
        <Button
          variant="default"
          size="compact-md"
          loading={start.isPending}
          disabled={isRunning}
          onClick={() => start.mutate()}
        >
          Measure now
        </Button>
      </Group>
      {start.error ? <ProblemNotice error={start.error} /> : null}
      {error ? <ProblemNotice error={error} /> : null}
      {data && items.length === 0 ? (
        <Text size="sm" c="dimmed">
          The node has not been measured outside jobs. A measurement needs a free node and takes about a minute.
        </Text>
      ) : null}
      {newest ? <PreflightReportView report={newest} /> : null}
      {items.length > 0 ? (
        <DataTable label="Preflights" rows={items} columns={columns} rowKey={(row) => row.id} />
      ) : null}
    </Stack>
  );
}
