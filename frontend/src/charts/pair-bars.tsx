import type { Unit } from "@/charts/units";
import { reading } from "@/charts/units";
import { Panel } from "@/components/panel";

import classes from "./pair-bars.module.css";

export interface Pair {
  name: string;
  first: number;
  second: number | null;
}

interface PairBarsProps {
  title: string;
  labels: [string, string];
  pairs: Pair[];
  unit: Unit;
}

/** One figure of each name, as it is and as it would be, side by side; the longest bar is the largest of all. */
export function PairBars({ title, labels, pairs, unit }: PairBarsProps) {
  const most = Math.max(...pairs.flatMap(({ first, second }) => [first, second ?? 0]), 1e-9);
  const compared = pairs.some(({ second }) => second !== null);
  const looks = [classes.first, classes.second];
  return (
    <Panel title={title}>
      <div className={classes.keys}>
        {labels.slice(0, compared ? 2 : 1).map((label, at) => (
          <span key={label}>
            <span className={`${classes.key} ${looks[at]}`} aria-hidden />
            {label}
          </span>
        ))}
      </div>
      <dl className={classes.rows}>
        {pairs.map(({ name, first, second }) => (
          <div key={name}>
            <dt className={classes.name}>{name}</dt>
            {[first, second].map((value, at) =>
              value === null ? null : (
                <dd key={labels[at]} className={classes.line}>
                  <span aria-hidden>
                    <span className={`${classes.bar} ${looks[at]}`} style={{ width: `${(100 * value) / most}%` }} />
                  </span>
                  <span className="numeric">
                    <span className="visually-hidden">{labels[at]}: </span>
                    {reading(value, unit)}
                  </span>
                </dd>
              ),
            )}
          </div>
        ))}
      </dl>
    </Panel>
  );
}
