import { Checkbox, Skeleton, Stack } from "@mantine/core";
import type { KeyboardEvent } from "react";
import { Link } from "react-router";

import type { JobSummary } from "@/api/types";
import { Panel } from "@/components/panel";
import { StatusBadge } from "@/components/status-badge";
import { TimeAgo } from "@/components/time-ago";
import { count, duration, loss, NOTHING, shortId } from "@/lib/format";
import { runTime } from "@/lib/run-time";
import { isFinal } from "@/lib/status";
import { useNow } from "@/lib/use-now";

import classes from "./jobs-table.module.css";

/** Arrow keys walk the rows, as in any list; Enter follows the link that has the focus. */
function walkRows(event: KeyboardEvent<HTMLTableSectionElement>): void {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (step === undefined) return;
  const links = [...event.currentTarget.querySelectorAll<HTMLAnchorElement>("a[data-row]")];
  const at = links.indexOf(document.activeElement as HTMLAnchorElement);
  const next = links[at + step];
  if (at < 0 || next === undefined) return;
  event.preventDefault();
  next.focus();
}

interface JobsTableProps {
  jobs: JobSummary[];
  stale: boolean;
  chosen: ReadonlySet<string>;
  onChoose: (id: string) => void;
}

export function JobsTable({ jobs, stale, chosen, onChoose }: JobsTableProps) {
  const live = jobs.some((job) => !isFinal(job.status));
  const now = useNow(live);
  return (
    <Panel flush>
      <table className={classes.table} data-stale={stale} aria-label="Jobs">
        <thead>
          <tr>
            <th scope="col">Job</th>
            <th scope="col">Status</th>
            <th scope="col">Progress</th>
            <th scope="col" className={classes.right}>
              Training loss
            </th>
            <th scope="col" className={classes.right}>
              Validation loss
            </th>
            <th scope="col" className={classes.right}>
              Tokens/s, mean
            </th>
            <th scope="col" className={classes.right}>
              Ran for
            </th>
            <th scope="col" className={classes.right}>
              Submitted
            </th>
          </tr>
        </thead>
        {/* The keys move between the links inside; the body itself is no control. */}
        {/* eslint-disable-next-line jsx-a11y/no-noninteractive-element-interactions */}
        <tbody onKeyDown={walkRows}>
          {jobs.map((job) => (
            <JobRow key={job.id} job={job} now={now} chosen={chosen.has(job.id)} onChoose={onChoose} />
          ))}
        </tbody>
      </table>
    </Panel>
  );
}

interface JobRowProps {
  job: JobSummary;
  now: number;
  chosen: boolean;
  onChoose: (id: string) => void;
}

function JobRow({ job, now, chosen, onChoose }: JobRowProps) {
  const { progress } = job;
  const waiting = job.status === "queued" || job.status === "failed";
  return (
    <tr>
      <td className={classes.name}>
        <Checkbox
          size="xs"
          className={classes.choice}
          aria-label={`Select ${job.name}, ${shortId(job.id)}`}
          checked={chosen}
          onChange={() => onChoose(job.id)}
        />
        <Link to={`/jobs/${job.id}`} data-row className={classes.link}>
          {job.name}
        </Link>
        <div className={classes.under}>
          {job.team.name} / {job.project} <span className="mono">{shortId(job.id)}</span>
        </div>
      </td>
      <td className={classes.status}>
        <StatusBadge status={job.status} />
        {waiting && job.reason ? (
          <div className={classes.under} title={job.reason.message}>
            {job.reason.code.replaceAll("_", " ")}
          </div>
        ) : null}
      </td>
      <td className={classes.progress} data-empty={progress === null}>
        <RowProgress job={job} />
      </td>
      <Figure label="training loss" value={loss(progress?.loss)} />
      <Figure label="validation loss" value={loss(job.validation_loss?.after ?? progress?.validation_loss)} />
      <Figure label="tokens/s" value={count(progress?.mean_tokens_per_second ?? progress?.tokens_per_second)} />
      <Figure label="ran" value={duration(runTime(job, now))} />
      <td className={classes.number} data-label="">
        <TimeAgo time={job.created_at} now={now} />
      </td>
    </tr>
  );
}

function Figure({ label, value }: { label: string; value: string }) {
  return (
    <td className={classes.number} data-label={label} data-empty={value === NOTHING}>
      {value}
    </td>
  );
}

function RowProgress({ job }: { job: JobSummary }) {
  const { progress } = job;
  if (progress === null || progress.steps_total === 0) return <span className="soft">{NOTHING}</span>;
  const share = Math.min(1, progress.step / progress.steps_total);
  return (
    <div className={classes.meter}>
      <div
        className={classes.track}
        role="progressbar"
        aria-label={`Progress of ${job.name}`}
        aria-valuemin={0}
        aria-valuemax={progress.steps_total}
        aria-valuenow={progress.step}
      >
        <div className={classes.fill} data-done={isFinal(job.status)} style={{ width: `${share * 100}%` }} />
      </div>
      <span className={classes.under}>
        {progress.step.toLocaleString("en")} of {progress.steps_total.toLocaleString("en")}
        {job.status === "running" && progress.eta_seconds !== null
          ? ` · ${duration(progress.eta_seconds)} left`
          : ""}
      </span>
    </div>
  );
}

export function JobsTableSkeleton() {
  return (
    <Panel>
      <Stack gap="md" aria-busy="true" aria-label="Loading the jobs">
        {[0, 1, 2, 3].map((row) => (
          <Skeleton key={row} height={34} />
        ))}
      </Stack>
    </Panel>
  );
}
