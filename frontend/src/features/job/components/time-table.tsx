import type { Job } from "@/api/types";
import { Panel } from "@/components/panel";
import { duration } from "@/lib/format";

import classes from "./time-table.module.css";

interface Part {
  name: string;
  seconds: number;
  color: string;
  detail?: boolean;
}

function details(seconds: Record<string, number | null>, color: string): Part[] {
  return Object.entries(seconds).flatMap(([name, value]) =>
    value === null ? [] : [{ name: name.replaceAll("_", " "), seconds: value, color, detail: true }],
  );
}

/** Queue, start-up and run add up to the whole; what is indented is a part of the row above it. */
function parts(job: Job): Part[] {
  const { timings } = job;
  const phases = Object.values(timings.startup);
  const startup = phases.reduce((sum, seconds) => sum + seconds, 0);
  const rows: Part[] = [{ name: "Queued", seconds: timings.queued_seconds, color: "--tone-waiting" }];
  if (phases.length > 0) {
    rows.push({ name: "Start-up", seconds: startup, color: "--series-4" });
    rows.push(...details(timings.startup, "--series-4"));
  }
  if (timings.training_seconds !== null) {
    rows.push({ name: "Training to the end", seconds: timings.training_seconds, color: "--series-1" });
    const inside = {
      evaluation: timings.evaluation_seconds,
      checkpoints: timings.checkpoint_seconds,
      export: timings.export_seconds,
    };
    rows.push(...details(inside, "--series-1"));
  }
  return rows;
}

/** Where the time went: one bar for the whole, one row for each part, start-up by its phases. */
export function TimeTable({ job }: { job: Job }) {
  const rows = parts(job);
  const total = rows.reduce((sum, row) => (row.detail ? sum : sum + row.seconds), 0);
  if (rows.length === 0) return null;
  return (
    <Panel title="Where the time went">
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
            <th scope="row">Together</th>
            <td>{duration(total)}</td>
          </tr>
        </tfoot>
      </table>
    </Panel>
  );
}
