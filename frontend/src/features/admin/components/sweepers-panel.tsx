import { Text } from "@mantine/core";

import type { Sweeper } from "@/api/types";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { Panel } from "@/components/panel";
import { Pill } from "@/components/pill";
import { TimeAgo } from "@/components/time-ago";
import { condition } from "@/features/admin/lib/condition";
import { duration } from "@/lib/format";
import { useNow } from "@/lib/use-now";

export function SweepersPanel({ sweepers }: { sweepers: Sweeper[] }) {
  const now = useNow(true, 5_000);
  const columns: Column<Sweeper>[] = [
    {
      name: "Sweeper",
      cell: (sweeper) => (
        <>
          <Text size="sm" fw={550} component="span" className="mono">
            {sweeper.name.replace("athanor.", "")}
          </Text>
          <Text size="sm" c="dimmed">
            {sweeper.invariant}
          </Text>
        </>
      ),
    },
    {
      name: "State",
      cell: (sweeper) => {
        const { tone, text } = condition(sweeper, now);
        return (
          <>
            <Pill tone={tone}>{text}</Pill>
            {text === "Failing" ? (
              <Text size="xs" c="dimmed" className="mono">
                {sweeper.error}
              </Text>
            ) : null}
          </>
        );
      },
    },
    { name: "Rows due", end: true, cell: (sweeper) => <span className="numeric">{sweeper.rows_due}</span> },
    {
      name: "Rows failing",
      end: true,
      cell: (sweeper) => <span className="numeric">{sweeper.rows_failing}</span>,
    },
    {
      name: "Given up (7 days)",
      end: true,
      cell: (sweeper) => <span className="numeric">{sweeper.rows_given_up}</span>,
    },
    {
      name: "Oldest",
      end: true,
      cell: (sweeper) => <span className="numeric">{duration(sweeper.oldest_due_seconds)}</span>,
    },
    { name: "Last run", quiet: true, cell: (sweeper) => <TimeAgo time={sweeper.ran_at} now={now} /> },
    { name: "Took", quiet: true, end: true, cell: (sweeper) => duration(sweeper.took_seconds) },
    { name: "Every", quiet: true, end: true, cell: (sweeper) => duration(sweeper.every_seconds) },
  ];
  return (
    <Panel title="Sweepers" flush>
      <DataTable label="Sweepers" rows={sweepers} columns={columns} rowKey={(sweeper) => sweeper.name} />
    </Panel>
  );
}
