import type { Job } from "@/api/types";
import { Panel } from "@/components/panel";
import { duration, elapsed } from "@/lib/format";
import { isFinal } from "@/lib/status";
import { useNow } from "@/lib/use-now";

import classes from "./time-table.module.css";

interface Part {
  name: string;
  seconds: number;
  color: string;
  detail?: boolean;
}

/** In the order in which a run goes through them; a phase with another name comes last. */
const PHASES = ["import", "fork", "rendezvous", "data", "model", "load", "compile", "first_step"];

function details(seconds: Record<string, number | null>, color: string): Part[] {
  return Object.entries(seconds).flatMap(([name, value]) =>
    value === null ? [] : [{ name: name.replaceAll("_", " "), seconds: value, color, detail: true }],
  );
}

function inOrder(phases: Record<string, number>): Record<string, number> {
  const place = (name: string) => (PHASES.indexOf(name) + PHASES.length + 1) % (PHASES.length + 1);
  return Object.fromEntries(Object.entries(phases).sort(([a], [b]) => place(a) - place(b)));
}

/**
 * Queue, start-up and run add up to the total. What is indented is a part of the row above it, and such parts
 * need not add up: data is prepared while the processes import.
 */
function parts(job: Job, now: number): Part[] {
  const { timings } = job;
  const queued = timings.queued_seconds;
  const rows: Part[] = [{ name: "Queued", seconds: queued, color: "--tone-waiting" }];
  if (job.attempt_count > 0) {
    const begun = elapsed(job.created_at, job.started_at ?? job.finished_at, now) ?? 0;
    rows.push({ name: "Start-up", seconds: Math.max(0, begun - queued), color: "--series-4" });
    rows.push(...details(inOrder(timings.startup), "--series-4"));
  }
  if (job.started_at !== null) {
    const trained = elapsed(job.started_at, job.finished_at, now) ?? 0;
    rows.push({ name: "First step to end", seconds: trained, color: "--series-1" });
    const inside = {
      evaluation: timings.evaluation_seconds,
      checkpoints: timings.checkpoint_seconds,
      export: timings.export_seconds,
    };
    rows.push(...details(inside, "--series-1"));
  }
  return rows;
}

/** Time breakdown: one bar for the total, one row for each part, start-up by its phases. */
export function TimeTable({ job }: { job: Job }) {
  const now = useNow(!isFinal(job.status));
  const rows = parts(job, now);
  const total = rows.reduce((sum, row) => (row.detail ? sum : sum + row.seconds), 0);
  return (
    <Panel title="Time breakdown">
      <div className={classes.bar} aria-hidden="true">
        {rows
          .filter((row) => !row.detail && row.seconds > 0)
          .map((row) => (
            <span key={row.name} style={{ flexGrow: row.seconds, background: `var(${row.color})` }} />
          ))}
      </div>
      <table className={classes.table}>
        <tbody>
          {rows.map((row) => (
            <tr key={`${row.name} ${row.detail ? "phase" : ""}`} data-detail={row.detail ?? false}>
              <th scope="row">
                {row.detail ? null : (
                  <span className={classes.swatch} style={{ background: `var(${row.color})` }} />
                )}
                {row.name}
              </th>
              <td>{duration(row.seconds)}</td>
            </tr>
          ))}
        </tbody>
        <tfoot>
          <tr>
            <th scope="row">Total</th>
            <td>{duration(total)}</td>
          </tr>
        </tfoot>
      </table>
    </Panel>
  );
}
