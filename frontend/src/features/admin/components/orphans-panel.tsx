import { Button, Stack, Text } from "@mantine/core";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";

import type { LostAttempt, LostObject } from "@/api/types";
import { Confirm } from "@/components/confirm";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { EmptyState } from "@/components/empty-state";
import { Notice } from "@/components/notice";
import { Panel } from "@/components/panel";
import { ProblemNotice } from "@/components/problem-notice";
import { TimeAgo } from "@/components/time-ago";
import { cancelObject, observeAttempt, orphansKey, orphansQuery } from "@/features/admin/api/operations";
import { useNow } from "@/lib/use-now";

const SEEN: Record<string, string> = {
  present: "It was found.",
  finished: "The process has ended. The status of the job follows shortly.",
  absent: "Still missing. After repeated misses the attempt is ended.",
  unknown: "The cluster does not know it yet.",
};

export function OrphansPanel() {
  const orphans = useQuery(orphansQuery());
  const client = useQueryClient();
  const [doomed, setDoomed] = useState<LostObject | null>(null);
  const refresh = () => client.invalidateQueries({ queryKey: orphansKey });
  const cancel = useMutation({
    mutationFn: cancelObject,
    onSuccess: () => setDoomed(null),
    onSettled: refresh,
  });
  const observe = useMutation({ mutationFn: observeAttempt, onSettled: refresh });
  const found = orphans.data;
  const none = found && found.objects.length + found.attempts.length === 0;
  const again = (
    <Button size="compact-sm" variant="default" loading={orphans.isFetching} onClick={() => void refresh()}>
      Refresh
    </Button>
  );
  return (
    <Panel title="Orphans" tools={again} flush>
      {orphans.error ? <ProblemNotice error={orphans.error} /> : null}
      <Stack gap="sm">
        {found?.unlisted.map((unlisted) => (
          <Notice key={unlisted.cluster} tone="waiting" title={`${unlisted.cluster} did not list its jobs.`}>
            <p>{unlisted.why}</p>
          </Notice>
        ))}
        {observe.data ? (
          <Notice tone="active" title={SEEN[observe.data.presence] ?? observe.data.presence} urgent>
            <p className="mono">{observe.data.attempt_id}</p>
          </Notice>
        ) : null}
        {observe.error ? <ProblemNotice error={observe.error} /> : null}
      </Stack>
      {none ? (
        <EmptyState title="No orphans">
          {found.unlisted.length > 0
            ? "None on the clusters that answered."
            : "Every running object belongs to a live attempt, and every live attempt was found on its cluster."}
        </EmptyState>
      ) : null}
      {found && found.objects.length > 0 ? (
        <ObjectsTable objects={found.objects} onCancel={setDoomed} />
      ) : null}
      {found && found.attempts.length > 0 ? (
        <AttemptsTable attempts={found.attempts} busy={observe.isPending} onObserve={observe.mutate} />
      ) : null}
      <Confirm
        opened={doomed !== null}
        title={`Cancel ${doomed?.backend_name ?? ""}?`}
        yes="Cancel object"
        no="Back"
        busy={cancel.isPending}
        error={cancel.error}
        onYes={() => {
          if (doomed) cancel.mutate(doomed);
        }}
        onNo={() => setDoomed(null)}
      >
        <Text size="sm">
          {doomed?.why} Its processes on {doomed?.cluster} are asked to end. If a live attempt owns it after all,
          the request is refused.
        </Text>
      </Confirm>
    </Panel>
  );
}

function ObjectsTable({ objects, onCancel }: { objects: LostObject[]; onCancel: (object: LostObject) => void }) {
  const columns: Column<LostObject>[] = [
    { name: "Object", cell: (object) => <span className="mono">{object.backend_name}</span> },
    { name: "Cluster", cell: (object) => object.cluster },
    { name: "Reason", cell: (object) => object.why },
    { name: "Job", quiet: true, cell: (object) => <span className="mono">{object.job_id || "–"}</span> },
    {
      name: "(Cancel)",
      end: true,
      cell: (object) => (
        <Button
          size="compact-sm"
          variant="subtle"
          color="red"
          onClick={() => onCancel(object)}
          aria-label={`Cancel ${object.backend_name}`}
        >
          Cancel
        </Button>
      ),
    },
  ];
  return (
    <DataTable
      label="Objects without a live attempt"
      rows={objects}
      columns={columns}
      rowKey={(object) => `${object.cluster_id} ${object.backend_name}`}
    />
  );
}

interface AttemptsTableProps {
  attempts: LostAttempt[];
  busy: boolean;
  onObserve: (attempt: LostAttempt) => void;
}

function AttemptsTable({ attempts, busy, onObserve }: AttemptsTableProps) {
  const now = useNow(true, 5_000);
  const columns: Column<LostAttempt>[] = [
    { name: "Attempt", cell: (attempt) => <span className="mono">{attempt.attempt_id}</span> },
    { name: "Cluster", cell: (attempt) => attempt.cluster },
    { name: "Times not found", end: true, cell: (attempt) => <span className="numeric">{attempt.absent_count}</span> },
    { name: "Missing since", cell: (attempt) => <TimeAgo time={attempt.absent_since} now={now} /> },
    { name: "Job", quiet: true, cell: (attempt) => <span className="mono">{attempt.job_id}</span> },
    {
      name: "(Details)",
      end: true,
      cell: (attempt) => (
        <Button
          size="compact-sm"
          variant="subtle"
          disabled={busy}
          onClick={() => onObserve(attempt)}
          aria-label={`Check now: ${attempt.attempt_id}`}
        >
          Check now
        </Button>
      ),
    },
  ];
  return (
    <DataTable
      label="Live attempts without an object"
      rows={attempts}
      columns={columns}
      rowKey={(attempt) => attempt.attempt_id}
    />
  );
}
