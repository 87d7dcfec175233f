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

function parts(job: Job): Part[] {
  const { queued_seconds, startup, training_seconds, checkpoint_seconds, export_seconds } = job.timings;
  const phases = Object.entries(startup);
  const startupTotal = phases.reduce((sum, [, seconds]) => sum + seconds, 0);
  const list: (Omit<Part, "seconds"> & { seconds: number | null })[] = [
    { name: "Queued", seconds: queued_seconds, color: "--tone-waiting" },
    { name: "Start-up", seconds: phases.length > 0 ? startupTotal : null, color: "--series-4" },
    ...phases.map(([name, seconds]) => ({
      name: name.replaceAll("_", " "),
      seconds,
      color: "--series-4",
      detail: true,
    })),
    { name: "Training", seconds: training_seconds, color: "--series-1" },
    { name: "Checkpoints", seconds: checkpoint_seconds, color: "--series-2" },
    { name: "Export", seconds: export_seconds, color: "--series-3" },
  ];
  return list.filter((part): part is Part => part.seconds !== null);
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
