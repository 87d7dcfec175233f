import { Text } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";

import type { QueuedAttempt } from "@/api/types";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { EmptyState } from "@/components/empty-state";
import { Panel } from "@/components/panel";
import { ProblemNotice } from "@/components/problem-notice";
import { TimeAgo } from "@/components/time-ago";
import { queueQuery } from "@/features/clusters/api/clusters";
import { label } from "@/lib/status";
import { sentence } from "@/lib/text";
import { useNow } from "@/lib/use-now";

/** Attempts that are queued or running on the cluster, with its own status for them. Other teams' jobs show only ids. */
export function QueuePanel({ clusterId }: { clusterId: string }) {
  const queue = useQuery(queueQuery(clusterId));
  const now = useNow(true, 5_000);
  const columns: Column<QueuedAttempt>[] = [
    {
      name: "Name on the cluster",
      cell: (attempt) => (
        <>
          <Text size="sm" className="mono" style={{ overflowWrap: "anywhere" }}>
            {attempt.backend_name}
          </Text>
          <Text size="xs" c="dimmed" className="mono">
            {attempt.backend_id === attempt.backend_name ? "" : attempt.backend_id}
          </Text>
        </>
      ),
    },
    { name: "Phase", cell: (attempt) => label(attempt.phase || attempt.status) },
    {
      name: "Cluster status",
      cell: (attempt) => (
        <>
          <span className="mono">{[attempt.native_state, attempt.native_reason].filter(Boolean).join(" · ") || "–"}</span>
          {attempt.explanation ? (
            <Text size="xs" c="dimmed">
              {sentence(attempt.explanation)}
            </Text>
          ) : null}
        </>
      ),
    },
    { name: "Nodes", quiet: true, cell: (attempt) => attempt.nodes.join(", ") || "–" },
    { name: "Submitted", quiet: true, cell: (attempt) => <TimeAgo time={attempt.submitted_at} now={now} /> },
    {
      name: "Job",
      quiet: true,
      cell: (attempt) => (
        <span className="mono" style={{ overflowWrap: "anywhere" }}>
          {attempt.job_id}
        </span>
      ),
    },
  ];
  const rows = queue.data?.items ?? [];
  return (
    <>
      {queue.error ? <ProblemNotice error={queue.error} onRetry={() => void queue.refetch()} /> : null}
      {queue.data ? (
        <Panel flush>
          {rows.length > 0 ? (
            <DataTable label="Queue" rows={rows} columns={columns} rowKey={(attempt) => attempt.attempt_id} />
          ) : (
            <EmptyState title="No jobs on this cluster">None queued and none running.</EmptyState>
          )}
        </Panel>
      ) : null}
    </>
  );
}
