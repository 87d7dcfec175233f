import { Anchor, Group, Stack, Text } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { Link } from "react-router";

import type { PoolQueue, QueuedJob } from "@/api/types";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { EmptyState } from "@/components/empty-state";
import { Page } from "@/components/page";
import { Panel } from "@/components/panel";
import { Pill } from "@/components/pill";
import { ProblemNotice } from "@/components/problem-notice";
import { TimeAgo } from "@/components/time-ago";
import { queueQuery } from "@/features/queue/api/queue";
import { CalibrationLine } from "@/features/queue/components/calibration-line";
import { shortId } from "@/lib/format";
import { useNow } from "@/lib/use-now";
import { expectedStart, holders, place } from "@/lib/wait";

function columnsAt(now: number): Column<QueuedJob>[] {
  return [
    { name: "Position", cell: ({ wait }) => (wait ? (place(wait) ?? "–") : "–") },
    {
      name: "Job",
      cell: (job) =>
        job.mine ? (
          <Anchor component={Link} to={`/jobs/${job.id}`} size="sm" fw={550}>
            {job.name}
          </Anchor>
        ) : (
          <span className="mono" title={job.id}>
            {shortId(job.id)}
          </span>
        ),
    },
    { name: "Team", quiet: true, cell: (job) => job.team.name },
    { name: "Priority", quiet: true, cell: (job) => job.priority },
    { name: "Slots", end: true, cell: (job) => job.slots },
    { name: "Reason", cell: (job) => <Why job={job} /> },
    { name: "Estimated start", cell: ({ wait }) => (wait ? (expectedStart(wait, now) ?? "not known yet") : "not known yet") },
    { name: "Queued", quiet: true, cell: (job) => <TimeAgo time={job.queued_at} now={now} /> },
  ];
}

function Why({ job: { reason, wait } }: { job: QueuedJob }) {
  const held = wait ? holders(wait) : "";
  return (
    <Stack gap={2} maw={460}>
      <Text size="sm">{reason ? reason.message : "Admission has not looked at it yet."}</Text>
      {wait?.unblocks ? (
        <Text size="xs" c="dimmed">
          {wait.unblocks}
        </Text>
      ) : null}
      {held ? (
        <Text size="xs" c="dimmed">
          Held by {held}.
        </Text>
      ) : null}
    </Stack>
  );
}

function Sums({ queue }: { queue: PoolQueue }) {
  const others = queue.waiting_jobs - queue.jobs.length;
  return (
    <Group gap="md">
      {queue.enabled ? null : <Pill tone="bad">disabled</Pill>}
      <Text size="xs" c="dimmed" className="numeric">
        {queue.slots_used} of {queue.slots} {queue.accelerator} slots used
        {queue.spare_slots > 0 ? `, ${queue.spare_slots} spare` : ""}; {queue.waiting_jobs}{" "}
        {queue.waiting_jobs === 1 ? "job waits" : "jobs wait"} for {queue.waiting_slots}
        {others > 0 ? `, ${others} of them not shown here` : ""}
      </Text>
    </Group>
  );
}

/** Who waits for which pool, in the order of admission; of other teams' jobs only the sums. */
export function QueuePage() {
  const queue = useQuery(queueQuery());
  const now = useNow(true, 5_000);
  const columns = columnsAt(now);
  return (
    <Page title="Queue" lead="Waiting jobs by pool, with reasons and estimated starts.">
      {queue.error ? <ProblemNotice error={queue.error} onRetry={() => void queue.refetch()} /> : null}
      {queue.data?.items.map((each) => (
        <Panel key={each.pool} title={each.pool} tools={<Sums queue={each} />} flush>
          {each.jobs.length > 0 ? (
            <DataTable label={`Queue of ${each.pool}`} rows={each.jobs} columns={columns} rowKey={(job) => job.id} />
          ) : (
            <EmptyState title={each.waiting_jobs > 0 ? "None of your jobs waits here" : "Nothing waits here"} />
          )}
        </Panel>
      ))}
      {queue.data && queue.data.items.length > 0 ? <CalibrationLine /> : null}
      {queue.data?.items.length === 0 ? (
        <EmptyState title="There are no pools yet">A platform administrator registers clusters and their pools.</EmptyState>
      ) : null}
    </Page>
  );
}
