import { List, Stack, Text } from "@mantine/core";

import type { QuotaPreview, TouchedJob } from "@/api/types";
import { Notice } from "@/components/notice";
import { sentence } from "@/lib/text";

function jobLine(job: TouchedJob): string {
  const why = job.why ? `: ${job.why}` : "";
  return `${job.id} of team ${job.team}, ${job.slots} ${job.accelerator}${why}`;
}

function Jobs({ title, jobs }: { title: string; jobs: TouchedJob[] }) {
  if (jobs.length === 0) return null;
  return (
    <div>
      <Text size="sm" fw={550}>
        {title}
      </Text>
      <List size="sm">
        {jobs.map((job) => (
          <List.Item key={job.id}>{jobLine(job)}</List.Item>
        ))}
      </List>
    </div>
  );
}

/** What a change would do at this moment. */
export function PreviewPanel({ preview }: { preview: QuotaPreview }) {
  const { differences, over, preempted, started, not_started: waiting, notes } = preview;
  const harmless = over.length + preempted.length + waiting.length === 0;
  return (
    <section aria-label="Preview">
      <Stack gap="sm">
        {differences.length === 0 ? (
          <Notice tone="muted" title="Nothing would change" />
        ) : (
          <pre className="mono" style={{ margin: 0, whiteSpace: "pre-wrap", fontSize: 12.5 }}>
            {differences.join("\n")}
          </pre>
        )}
        {notes.length > 0 ? (
          <Notice tone="muted">
            {notes.map((note) => (
              <p key={note}>{sentence(note)}</p>
            ))}
          </Notice>
        ) : null}
        {over.length > 0 ? (
          <Notice tone="waiting" title="Over the new limit">
            {over.map((each) => (
              <p key={`${each.node} ${each.what}`}>{each.detail}</p>
            ))}
            <p>Running jobs continue; nothing new starts there until usage is below the limit.</p>
          </Notice>
        ) : null}
        <Jobs title="Would checkpoint and return to the queue" jobs={preempted} />
        <Jobs title="Would start immediately" jobs={started} />
        <Jobs title="Would wait instead of starting now" jobs={waiting} />
        {differences.length > 0 && harmless ? (
          <Notice tone="good" title="No limit would be exceeded, and no running job would stop" />
        ) : null}
      </Stack>
    </section>
  );
}
