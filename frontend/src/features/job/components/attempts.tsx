import { Text } from "@mantine/core";

import type { Job } from "@/api/types";
import { Panel } from "@/components/panel";
import { duration, elapsed } from "@/lib/format";
import { isFinal } from "@/lib/status";
import { sentence } from "@/lib/text";
import { useNow } from "@/lib/use-now";

import classes from "./attempts.module.css";

/** Each start of the job, newest first, with why it ended: what a retry policy has done. */
export function Attempts({ job }: { job: Job }) {
  const now = useNow(!isFinal(job.status));
  const newest = [...job.attempts].sort((a, b) => b.number - a.number);
  return (
    <Panel title="Attempts">
      <ol className={classes.list} reversed>
        {newest.map((attempt) => (
          <li key={attempt.id}>
            <div className={classes.line}>
              <Text size="sm" fw={550} component="span">
                Attempt {attempt.number}
              </Text>
              <Text size="sm" c="dimmed" component="span" className="numeric">
                {attempt.last_step === null || attempt.last_step < 0 ? "" : `to step ${attempt.last_step} · `}
                {duration(elapsed(attempt.started_at, attempt.finished_at, now))}
              </Text>
            </div>
            <Text size="xs" c="dimmed">
              {attempt.reason ? sentence(attempt.reason.message) : sentence(attempt.status)}
            </Text>
          </li>
        ))}
      </ol>
    </Panel>
  );
}
