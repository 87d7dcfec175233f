import { Checkbox, Skeleton, Stack, UnstyledButton } from "@mantine/core";
import type { KeyboardEvent, ReactNode } from "react";
import { Link } from "react-router";

import { Panel } from "@/components/panel";
import { StatusBadge } from "@/components/status-badge";
import type { Column, ListedJob } from "@/features/jobs/lib/columns";
import { columnOf } from "@/features/jobs/lib/columns";
import { duration, NOTHING, shortId } from "@/lib/format";
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
  jobs: ListedJob[];
  columns: string[];
  /** As `GET /jobs` takes it. */
  sort: string;
  onSort: (sort: string) => void;
  stale: boolean;
  chosen: ReadonlySet<string>;
  onChoose: (id: string) => void;
}

export function JobsTable({ jobs, columns, sort, onSort, stale, chosen, onChoose }: JobsTableProps) {
  const shown = columns.map(columnOf).filter((column) => column !== undefined);
  const live = jobs.some((job) => !isFinal(job.status));
  const now = useNow(live);
  return (
    <Panel flush>
      <table className={classes.table} data-stale={stale} aria-label="Jobs">
        <thead>
          <tr>
            <Heading text="Job" order="name" sort={sort} onSort={onSort} />
            <Heading text="Status" sort={sort} onSort={onSort} />
            <Heading text="Progress" order="step" sort={sort} onSort={onSort} />
            {shown.map((column) => (
              <Heading
                key={column.id}
                text={column.heading}
                order={column.sort}
                sort={sort}
                onSort={onSort}
                className={classes.right}
              />
            ))}
          </tr>
        </thead>
        {/* The keys move between the links inside; the body itself is no control. */}
        {/* eslint-disable-next-line jsx-a11y/no-noninteractive-element-interactions */}
        <tbody onKeyDown={walkRows}>
          {jobs.map((job) => (
            <JobRow key={job.id} job={job} columns={shown} now={now} chosen={chosen.has(job.id)} onChoose={onChoose} />
          ))}
        </tbody>
      </table>
    </Panel>
  );
}

interface HeadingProps {
  text: string;
  order?: string | undefined;
  sort: string;
  onSort: (sort: string) => void;
  className?: string | undefined;
}

const SORTED = { ascending: " ↑", descending: " ↓", none: "" };

/** One click sorts by the smallest first, the next by the largest, the third restores the newest first. */
function Heading({ text, order, sort, onSort, className }: HeadingProps) {
  if (order === undefined) {
    return (
      <th scope="col" className={className}>
        {text}
      </th>
    );
  }
  const state = sort === order ? "ascending" : sort === `-${order}` ? "descending" : "none";
  const next = { none: order, ascending: `-${order}`, descending: "" }[state];
  return (
    <th scope="col" className={className} aria-sort={state}>
      <UnstyledButton className={classes.sort ?? ""} onClick={() => onSort(next)}>
        {text}
        <span aria-hidden>{SORTED[state]}</span>
      </UnstyledButton>
    </th>
  );
}

interface JobRowProps {
  job: ListedJob;
  columns: Column[];
  now: number;
  chosen: boolean;
  onChoose: (id: string) => void;
}

function JobRow({ job, columns, now, chosen, onChoose }: JobRowProps) {
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
      {columns.map((column) => (
        <Figure key={column.id} label={column.label} value={column.value(job, now)} />
      ))}
    </tr>
  );
}

function Figure({ label, value }: { label: string; value: ReactNode }) {
  return (
    <td className={classes.number} data-label={label} data-empty={value === NOTHING}>
      {value}
    </td>
  );
}

function RowProgress({ job }: { job: ListedJob }) {
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
