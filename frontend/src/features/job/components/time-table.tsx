import { Select, Skeleton } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";

import type { Job, Timeline, Timings } from "@/api/types";
import { Panel } from "@/components/panel";
import { ProblemNotice } from "@/components/problem-notice";
import { timelineQuery } from "@/features/job/api/queries";
import { ACTIVITIES, type Activity, comparePhases, IN_ORDER, phaseName } from "@/lib/activities";
import { duration } from "@/lib/format";

import classes from "@/components/time-table.module.css";

/** Where the job's time went, drawn over the wall clock and added up: for the whole job or for one attempt. */
export function TimeTable({ job }: { job: Job }) {
  const { data, error, refetch } = useQuery(timelineQuery(job));
  const [chosen, setChosen] = useState<string | null>(null);
  if (error) {
    return (
      <Panel title="Time breakdown">
        <ProblemNotice error={error} onRetry={() => void refetch()} />
      </Panel>
    );
  }
  if (!data) {
    return (
      <Panel title="Time breakdown">
        <Skeleton height={140} aria-busy="true" />
      </Panel>
    );
  }
  const one = data.attempts.find((each) => String(each.attempt) === chosen);
  return (
    <Panel title="Time breakdown">
      <Gantt timeline={data} />
      {data.attempts.length > 1 ? (
        <Select
          size="xs"
          mb="xs"
          aria-label="Times of"
          placeholder="All attempts and waits"
          clearable
          value={chosen}
          onChange={setChosen}
          data={data.attempts.map(({ attempt }) => ({ value: String(attempt), label: `Attempt ${attempt}` }))}
        />
      ) : null}
      <Sums timings={one ? one.timings : data.timings} />
    </Panel>
  );
}

/** One line for the waits between attempts, and one for each attempt, newest last. */
function Gantt({ timeline }: { timeline: Timeline }) {
  const { spans, attempts } = timeline;
  const [first, last] = [spans[0], spans.at(-1)];
  if (!first || !last) return null;
  const begin = Date.parse(first.start);
  const total = Math.max(1, Date.parse(last.end) - begin);
  const share = (time: string) => `${((Date.parse(time) - begin) / total) * 100}%`;
  const lines = [
    { name: "Queue and pauses", attempt: null as number | null },
    ...attempts.map(({ attempt }) => ({ name: `Attempt ${attempt}`, attempt })),
  ];
  return (
    <ul className={classes.gantt} aria-label="Attempts, queue and pauses over time">
      {lines.map(({ name, attempt }) => (
        <li key={name}>
          <span className={classes.name}>{name}</span>
          <span className={classes.line}>
            {spans
              .filter((span) => span.attempt === attempt)
              .map((span) => (
                <span
                  key={span.start}
                  data-activity={span.activity}
                  title={`${ACTIVITIES[span.activity].name}${span.phase ? `, ${phaseName(span.phase)}` : ""}: ${duration(
                    (Date.parse(span.end) - Date.parse(span.start)) / 1000,
                  )}`}
                  style={{
                    left: share(span.start),
                    width: `calc(${share(span.end)} - ${share(span.start)})`,
                    background: `var(${ACTIVITIES[span.activity].color})`,
                  }}
                />
              ))}
          </span>
        </li>
      ))}
    </ul>
  );
}

function Sums({ timings }: { timings: Timings }) {
  const activities = IN_ORDER.filter((each) => timings[`${each}_seconds`] > 0);
  return (
    <table className={classes.table}>
      <tbody>
        {activities.map((activity) => (
          <SumRows key={activity} activity={activity} timings={timings} />
        ))}
      </tbody>
      <tfoot>
        <tr>
          <th scope="row">Total</th>
          <td>{duration(timings.total_seconds)}</td>
        </tr>
      </tfoot>
    </table>
  );
}

function SumRows({ activity, timings }: { activity: Activity; timings: Timings }) {
  const { name, color } = ACTIVITIES[activity];
  return (
    <>
      <tr>
        <th scope="row">
          <span className={classes.swatch} style={{ background: `var(${color})` }} />
          {name}
        </th>
        <td>{duration(timings[`${activity}_seconds`])}</td>
      </tr>
      {activity === "startup"
        ? Object.entries(timings.startup).sort(([a], [b]) => comparePhases(a, b)).map(([phase, seconds]) => (
            <tr key={phase} data-detail>
              <th scope="row">{phaseName(phase)}</th>
              <td>{duration(seconds)}</td>
            </tr>
          ))
        : null}
    </>
  );
}
