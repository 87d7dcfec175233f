import { Text } from "@mantine/core";

import type { Reconciler } from "@/api/types";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { Panel } from "@/components/panel";
import { Pill } from "@/components/pill";
import { TimeAgo } from "@/components/time-ago";
import { condition } from "@/features/admin/lib/condition";
import { duration } from "@/lib/format";
import { useNow } from "@/lib/use-now";

export function ReconcilersPanel({ reconcilers }: { reconcilers: Reconciler[] }) {
  const now = useNow(true, 5_000);
  const columns: Column<Reconciler>[] = [
    {
      name: "Reconciler",
      cell: (reconciler) => (
        <>
          <Text size="sm" fw={550} component="span" className="mono">
            {reconciler.name.replace("athanor.", "")}
          </Text>
          <Text size="sm" c="dimmed">
            {reconciler.invariant}
          </Text>
        </>
      ),
    },
    {
      name: "State",
      cell: (reconciler) => {
        const { tone, text } = condition(reconciler, now);
        return (
          <>
            <Pill tone={tone}>{text}</Pill>
            {text === "Failing" ? (
              <Text size="xs" c="dimmed" className="mono">
                {reconciler.error}
              </Text>
            ) : null}
          </>
        );
      },
    },
    { name: "Rows due", end: true, cell: (reconciler) => <span className="numeric">{reconciler.rows_due}</span> },
    {
      name: "Rows failing",
      end: true,
      cell: (reconciler) => <span className="numeric">{reconciler.rows_failing}</span>,
    },
    {
      name: "Given up (7 days)",
      end: true,
      cell: (reconciler) => <span className="numeric">{reconciler.rows_given_up}</span>,
    },
    {
      name: "Oldest row due",
      end: true,
      cell: (reconciler) => <span className="numeric">{duration(reconciler.oldest_due_seconds)}</span>,
    },
    { name: "Last run", quiet: true, cell: (reconciler) => <TimeAgo time={reconciler.ran_at} now={now} /> },
    { name: "Duration", quiet: true, end: true, cell: (reconciler) => duration(reconciler.took_seconds) },
    { name: "Interval", quiet: true, end: true, cell: (reconciler) => duration(reconciler.every_seconds) },
  ];
  return (
    <Panel title="Reconcilers" flush>
      <DataTable label="Reconcilers" rows={reconcilers} columns={columns} rowKey={(reconciler) => reconciler.name} />
    </Panel>
  );
}
