import { Button, Text } from "@mantine/core";
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import type { ReactNode } from "react";

import type { Job } from "@/api/types";
import { Moment } from "@/components/moment";
import { Panel } from "@/components/panel";
import { ProblemNotice } from "@/components/problem-notice";
import { TimeAgo } from "@/components/time-ago";
import { duration, elapsed } from "@/lib/format";
import { isFinal, label } from "@/lib/status";
import { sentence } from "@/lib/text";
import { useNow } from "@/lib/use-now";

import { outputQuery } from "../api/queries";
import classes from "./attempts.module.css";

type Attempt = Job["attempts"][number];

/** Each start of the job, newest first: where it was, what its cluster says of it, and why it ended. */
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
                {duration(elapsed(attempt.launched_at, attempt.finished_at, now))}
              </Text>
            </div>
            <Text size="xs" c="dimmed">
              {attempt.reason ? sentence(attempt.reason.message) : sentence(attempt.status)}
            </Text>
            <Native attempt={attempt} now={now} />
            <Output job={job} attempt={attempt} />
          </li>
        ))}
      </ol>
    </Panel>
  );
}

/** The cluster's own words beside ours. */
function Native({ attempt, now }: { attempt: Attempt; now: number }) {
  const words = [attempt.native_state, attempt.native_reason].filter(Boolean).join(" · ");
  const facts: [string, ReactNode][] = [
    [`On ${attempt.cluster}`, words],
    ["Is there", attempt.finished_at === null && attempt.phase ? label(attempt.phase) : ""],
    ["That means", attempt.explanation ? sentence(attempt.explanation) : ""],
    ["Would start", attempt.launched_at === null && attempt.expected_start_at ? <Moment time={attempt.expected_start_at} /> : ""],
    ["Began there", attempt.launched_at ? <TimeAgo time={attempt.launched_at} now={now} /> : ""],
    ["Nodes", attempt.nodes.join(", ")],
  ];
  const known = facts.filter(([, value]) => value !== "");
  if (known.length === 0) return null;
  return (
    <dl className={classes.native}>
      {known.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

/** The output that the cluster stored for an attempt, loaded on demand: it shows why an agent never connected. */
function Output({ job, attempt }: { job: Job; attempt: Attempt }) {
  const [isShown, setIsShown] = useState(false);
  const client = useQueryClient();
  const { data, error, refetch } = useQuery({ ...outputQuery(job, attempt, client), enabled: isShown });
  const id = `output-${attempt.id}`;
  return (
    <>
      <Button
        variant="subtle"
        size="compact-xs"
        aria-expanded={isShown}
        aria-controls={id}
        onClick={() => setIsShown(!isShown)}
      >
        {isShown ? "Hide" : "Show"} the output of attempt {attempt.number} on {attempt.cluster}
      </Button>
      <div id={id}>
        {isShown && error ? <ProblemNotice error={error} onRetry={() => void refetch()} /> : null}
        {isShown && data ? (
          // eslint-disable-next-line jsx-a11y/no-noninteractive-tabindex -- keyboard users scroll it too
          <div role="log" className={classes.output} tabIndex={0} aria-label={`Output of attempt ${attempt.number}`}>
            {data.text || "No output."}
          </div>
        ) : null}
      </div>
    </>
  );
}
