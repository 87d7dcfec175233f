import { Anchor, Group, Text } from "@mantine/core";
import { Link } from "react-router";

import type { Job } from "@/api/types";
import { CopyButton } from "@/components/copy-button";
import { Notice } from "@/components/notice";
import { StatusBadge } from "@/components/status-badge";
import { TimeAgo } from "@/components/time-ago";
import { shortId } from "@/lib/format";
import { isFinal, label, tone } from "@/lib/status";
import { sentence } from "@/lib/text";
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
        by {job.created_by},{" "}
        <TimeAgo time={job.created_at} now={now} />
      </span>
      {job.forked_from ? (
        <span>
          forked from{" "}
          <Link to={`/jobs/${job.forked_from}`} className="mono">
            {shortId(job.forked_from)}
          </Link>
        </span>
      ) : null}
      {Object.entries(job.labels).map(([name, value]) => (
        <Text key={name} size="xs" className="mono">
          {name}={value}
        </Text>
      ))}
    </Group>
  );
}

const EXPECTED = new Set(["completed"]);

/** What the cluster says of an attempt that it has not started. */
function whyNotStarted(job: Job): string {
  const attempt = job.attempts.at(-1);
  if (job.status !== "starting" || !attempt || attempt.phase === "running" || !attempt.explanation) return "";
  return `${attempt.cluster}: ${attempt.explanation}`;
}

/** Why the job waits or ended, with what to do about it. A plain success needs no explanation. */
export function JobOutcome({ job }: { job: Job }) {
  const { reason } = job;
  const notStarted = whyNotStarted(job);
  return (
    <>
      {notStarted ? <Notice tone="waiting" title={notStarted} /> : null}
      {reason && !EXPECTED.has(reason.code) ? (
        <Notice tone={tone(job.status)} title={sentence(reason.message || reason.code.replaceAll("_", " "))}>
          {reason.remedy ? <p>{sentence(reason.remedy)}</p> : null}
          <Text size="xs" c="dimmed" className="mono">
            {reason.code}
          </Text>
          {reason.runbook ? (
            <Anchor href={reason.runbook} size="sm">
              Runbook
            </Anchor>
          ) : null}
        </Notice>
      ) : null}
      {!isFinal(job.status) && job.warnings.length > 0 ? (
        <Notice tone="waiting">
          {job.warnings.map((warning) => (
            <p key={`${warning.pointer} ${warning.code}`}>{sentence(warning.detail)}</p>
          ))}
        </Notice>
      ) : null}
    </>
  );
}
