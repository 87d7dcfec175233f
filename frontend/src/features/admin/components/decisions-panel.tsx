import { Anchor, Button, Text } from "@mantine/core";
import { useMutation, useQuery } from "@tanstack/react-query";
import { Link } from "react-router";

import type { AdmissionDecision } from "@/api/types";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { EmptyState } from "@/components/empty-state";
import { Panel } from "@/components/panel";
import { TimeAgo } from "@/components/time-ago";
import { decisionsQuery, replayDecision } from "@/features/admin/api/operations";
import { duration, shortId } from "@/lib/format";
import { useNow } from "@/lib/use-now";

const SHOWN = 3;

/** The newest decisions of admission that started or preempted something; each can be made again from what is stored. */
export function DecisionsPanel() {
  const decisions = useQuery(decisionsQuery());
  const now = useNow(true, 5_000);
  const columns: Column<AdmissionDecision>[] = [
    { name: "Decision", cell: ({ id }) => <span className="numeric">{id}</span> },
    { name: "Time", cell: ({ time }) => <TimeAgo time={time} now={now} /> },
    { name: "Considered", end: true, quiet: true, cell: ({ considered }) => considered },
    { name: "Started", cell: ({ admitted }) => <Jobs ids={admitted} /> },
    { name: "Preempted", cell: ({ preempted }) => <Jobs ids={preempted} /> },
    { name: "Duration", end: true, quiet: true, cell: ({ took_seconds }) => duration(took_seconds) },
    { name: "Replay", cell: (decision) => <Replay decision={decision} /> },
  ];
  return (
    <Panel title="Admission decisions" flush>
      {decisions.data && decisions.data.items.length > 0 ? (
        <DataTable
          label="Admission decisions"
          rows={decisions.data.items}
          columns={columns}
          rowKey={({ id }) => String(id)}
        />
      ) : (
        <EmptyState title="Nothing has been admitted yet" />
      )}
    </Panel>
  );
}

function Jobs({ ids }: { ids: string[] }) {
  if (ids.length === 0) return <Text size="sm">–</Text>;
  return (
    <>
      {ids.slice(0, SHOWN).map((id) => (
        <Anchor key={id} component={Link} to={`/jobs/${id}`} size="sm" className="mono" mr={8}>
          {shortId(id)}
        </Anchor>
      ))}
      {ids.length > SHOWN ? `and ${ids.length - SHOWN} more` : null}
    </>
  );
}

function Replay({ decision }: { decision: AdmissionDecision }) {
  const replay = useMutation({ mutationFn: () => replayDecision(decision.id) });
  if (replay.data) {
    return (
      <Text size="sm" role="status">
        {replay.data.same ? "Same result" : `Otherwise for ${replay.data.differing.length} jobs`}
      </Text>
    );
  }
  return (
    <Button
      size="compact-sm"
      variant="default"
      loading={replay.isPending}
      onClick={() => replay.mutate()}
      aria-label={`Replay decision ${decision.id}`}
    >
      {replay.isError ? "Failed, try again" : "Replay decision"}
    </Button>
  );
}
