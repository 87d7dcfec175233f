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
    <section aria-label="What it would do">
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
          <Notice tone="waiting" title="Over what would be allowed">
            {over.map((each) => (
              <p key={`${each.node} ${each.what}`}>{each.detail}</p>
            ))}
            <p>What runs goes on; nothing new starts there until it is below.</p>
          </Notice>
        ) : null}
        <Jobs title="Would save a checkpoint and wait" jobs={preempted} />
        <Jobs title="Would start at once" jobs={started} />
        <Jobs title="Would wait, and would start now" jobs={waiting} />
        {differences.length > 0 && harmless ? (
          <Notice tone="good" title="Nobody would be over, and no running job would stop" />
        ) : null}
      </Stack>
    </section>
  );
}
