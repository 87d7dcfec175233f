import { Alert, Group, Text } from "@mantine/core";

import type { Job } from "@/api/types";
import { CopyButton } from "@/components/copy-button";
import { StatusBadge } from "@/components/status-badge";
import { TimeAgo } from "@/components/time-ago";
import { isFinal, label, tone } from "@/lib/status";
import { useNow } from "@/lib/use-now";

const UNREMARKABLE = new Set(["ok", "unknown", ""]);

/** The line below the title: what this job is, and where it belongs. */
export function JobFacts({ job }: { job: Job }) {
  const now = useNow(true, 5_000);
  return (
    <Group gap="6px 14px" mt={6}>
      <StatusBadge status={job.status} large />
      {!isFinal(job.status) && !UNREMARKABLE.has(job.health) ? (
        <Text size="sm" c="var(--tone-waiting)" fw={550}>
          {label(job.health)}
        </Text>
      ) : null}
      <span>
        {job.team.name} / {job.project}
      </span>
      <Group gap={2}>
        <span className="mono">{job.id}</span>
        <CopyButton value={job.id} label="Copy the job's id" />
      </Group>
      <span>
        {job.created_by ? `by ${job.created_by}, ` : ""}
        <TimeAgo time={job.created_at} now={now} />
      </span>
      {Object.entries(job.labels).map(([name, value]) => (
        <Text key={name} size="xs" className="mono">
          {name}={value}
        </Text>
      ))}
    </Group>
  );
}

const COLORS = { bad: "red", waiting: "yellow", active: "yellow", good: "teal", muted: "gray" };
const EXPECTED = new Set(["completed"]);

/** Why the job waits or ended, with what to do about it. A plain success needs no explanation. */
export function JobOutcome({ job }: { job: Job }) {
  const { reason } = job;
  return (
    <>
      {reason && !EXPECTED.has(reason.code) ? (
        <Alert color={COLORS[tone(job.status)]} title={reason.message} variant="light">
          {reason.remedy ? <Text size="sm">{reason.remedy}</Text> : null}
          <Text size="xs" c="dimmed" className="mono" mt={4}>
            {reason.code}
          </Text>
        </Alert>
      ) : null}
      {!isFinal(job.status) && job.warnings.length > 0 ? (
        <Alert color="yellow" variant="light" title="Good to know">
          {job.warnings.map((warning) => (
            <Text size="sm" key={`${warning.pointer} ${warning.code}`}>
              {warning.detail}
            </Text>
          ))}
        </Alert>
      ) : null}
    </>
  );
}
