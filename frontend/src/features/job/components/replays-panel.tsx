import { Anchor } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { Link } from "react-router";

import type { Job, ReplayedSegment } from "@/api/types";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { Moment } from "@/components/moment";
import { Panel } from "@/components/panel";
import { Pill } from "@/components/pill";
import { ProblemNotice } from "@/components/problem-notice";
import { replaysQuery } from "@/features/job/api/queries";
import { count } from "@/lib/format";
import type { Tone } from "@/lib/status";

const VERDICTS: Record<ReplayedSegment["verdict"], [Tone, string]> = {
  equal: ["good", "Equal"],
  within_tolerance: ["good", "Within tolerance"],
  differs: ["bad", "Differs"],
  not_comparable: ["bad", "Not comparable"],
};

const columnsOf = (job: Job): Column<ReplayedSegment>[] => [
  {
    name: "Replay",
    cell: ({ replay, replayed }) => {
      const [label, other] = replay.id === job.id ? ["of", replayed] : ["by", replay];
      return (
        <>
          {label}{" "}
          <Anchor component={Link} to={`/jobs/${other.id}`} size="sm">
            {other.name}
          </Anchor>
        </>
      );
    },
  },
  { name: "Steps", end: true, cell: (row) => `${count(row.first_step + 1)} to ${count(row.last_step)}` },
  {
    name: "Verdict",
    cell: ({ verdict }) => {
      const [tone, label] = VERDICTS[verdict];
      return <Pill tone={tone}>{label}</Pill>;
    },
  },
  { name: "Tensors", end: true, cell: (row) => count(row.tensors) },
  { name: "Different", end: true, cell: (row) => count(row.differing) },
  { name: "Because", quiet: true, cell: (row) => row.because },
  { name: "Created", end: true, quiet: true, cell: (row) => <Moment time={row.created_at} /> },
];

/** Segments that were computed again and compared with the checkpoints. Without a replay, nothing is shown. */
export function ReplaysPanel({ job }: { job: Job }) {
  const replays = useQuery(replaysQuery(job));
  if (replays.error) return <ProblemNotice error={replays.error} onRetry={() => void replays.refetch()} />;
  const rows = replays.data?.items ?? [];
  if (rows.length === 0) return null;
  return (
    <Panel title="Replays" flush>
      <DataTable label="Replays" rows={rows} columns={columnsOf(job)} rowKey={(row) => `${row.replay.id} ${row.number}`} />
    </Panel>
  );
}
