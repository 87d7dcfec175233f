import type { DataReport } from "@/api/types";
import { count } from "@/lib/format";

import classes from "./length-histogram.module.css";

type Lengths = DataReport["report"]["sources"][number]["lengths"];

/** Largest bar, as a share of the table's width. */
const WIDEST_PERCENT = 80;

/** Documents by length in tokens; those longer than a sequence in another colour. */
export function LengthHistogram({ lengths, sequenceLength }: { lengths: Lengths; sequenceLength: number }) {
  const most = Math.max(1, ...lengths.counts);
  const last = lengths.bounds.at(-1) ?? 0;
  return (
    <table className={classes.table} aria-label="Lengths of documents">
      <tbody>
        {lengths.counts.map((documents, number) => {
          const bound = lengths.bounds[number];
          const isLong = bound === undefined || bound > sequenceLength;
          return (
            <tr key={number}>
              <th scope="row">
                {bound === undefined ? `over ${count(last)}` : `up to ${count(bound)}`} tokens
              </th>
              <td>
                {documents > 0 ? (
                  <span
                    className={`${classes.bar} ${isLong ? classes.long : ""}`}
                    style={{ width: `${(documents / most) * WIDEST_PERCENT}%` }}
                  />
                ) : null}
                {count(documents)}
              </td>
            </tr>
          );
        })}
      </tbody>
    </table>
  );
}
