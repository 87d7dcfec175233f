import { useQuery } from "@tanstack/react-query";

import type { Goodput, Job } from "@/api/types";
import { Moment } from "@/components/moment";
import { Panel } from "@/components/panel";
import { ProblemNotice } from "@/components/problem-notice";
import { goodputQuery } from "@/features/job/api/queries";
import { ACTIVITIES, comparePhases, phaseName } from "@/features/job/lib/activities";
import { count, duration, money, percent } from "@/lib/format";
import { sentence } from "@/lib/text";

import classes from "./goodput-panel.module.css";
import times from "./time-table.module.css";

type Category = Goodput["categories"][number];
type Interruption = Goodput["interruptions"][number];

const NOT_KNOWN = "not known";

/** What the job's slots were held for and what it cost, then what interrupted it. */
export function GoodputPanel({ job }: { job: Job }) {
  const { data, error, refetch } = useQuery(goodputQuery(job));
  if (error) {
    return (
      <Panel title="Goodput">
        <ProblemNotice error={error} onRetry={() => void refetch()} />
      </Panel>
    );
  }
  if (!data || data.attempts.length === 0) return null;
  const cost = (micro: number) => money(micro / 1e6, data.currency);
  return (
    <Panel title="Goodput">
      <p className={classes.summary}>
        <strong>{percent(data.goodput)}</strong> of the slot time was productive. {cost(data.charged)} charged,{" "}
        {cost(data.refunded)} refunded.
      </p>
      <div className={classes.bar} role="img" aria-label={data.categories.map(inWords).join(", ")}>
        {data.categories.map((each) => (
          <span
            key={each.activity}
            title={inWords(each)}
            style={{ width: `${each.share * 100}%`, background: `var(${ACTIVITIES[each.activity].color})` }}
          />
        ))}
      </div>
      <Categories data={data} />
      {data.interruptions.length > 0 ? (
        <>
          <h3 className={classes.heading}>Interruptions</h3>
          <ol className={classes.interruptions}>
            {data.interruptions.map((each) => (
              <Loss key={`${each.attempt}-${each.time}`} loss={each} cost={cost} />
            ))}
          </ol>
        </>
      ) : null}
    </Panel>
  );
}

function inWords({ activity, share }: Category): string {
  return `${ACTIVITIES[activity].name}: ${percent(share)}`;
}

const amount = (micro: number) => money(micro / 1e6, "");

function Categories({ data }: { data: Goodput }) {
  return (
    <table className={`${times.table} ${classes.sums}`} aria-label="Slot time by activity">
      <thead>
        <tr>
          <th scope="col">Activity</th>
          <th scope="col">Slot time</th>
          <th scope="col">Share</th>
          <th scope="col">Cost, {data.currency}</th>
        </tr>
      </thead>
      <tbody>
        {data.categories.map((each) => (
          <CategoryRows key={each.activity} category={each} />
        ))}
      </tbody>
      <tfoot>
        <tr>
          <th scope="row">Total</th>
          <td>{duration(data.slot_seconds)}</td>
          <td />
          <td>{amount(data.cost)}</td>
        </tr>
      </tfoot>
    </table>
  );
}

function CategoryRows({ category }: { category: Category }) {
  const { name, color } = ACTIVITIES[category.activity];
  const phases = [...category.phases].sort((a, b) => comparePhases(a.phase, b.phase));
  return (
    <>
      <tr>
        <th scope="row">
          <span className={times.swatch} style={{ background: `var(${color})` }} />
          {name}
        </th>
        <td>{duration(category.slot_seconds)}</td>
        <td>{percent(category.share)}</td>
        <td>{amount(category.cost)}</td>
      </tr>
      {phases.map((each) => (
        <tr key={each.phase} data-detail>
          <th scope="row">{phaseName(each.phase)}</th>
          <td>{duration(each.slot_seconds)}</td>
          <td />
          <td>{amount(each.cost)}</td>
        </tr>
      ))}
    </>
  );
}

function Loss({ loss, cost }: { loss: Interruption; cost: (micro: number) => string }) {
  const parts: [string, number][] = [
    ["lost", loss.lost_slot_seconds],
    ["without progress", loss.stalled_slot_seconds],
    ["start-up", loss.startup_slot_seconds],
  ];
  const spent = parts.filter(([, seconds]) => seconds > 0).map(([name, seconds]) => `${duration(seconds)} ${name}`);
  const steps = loss.steps_lost === null ? NOT_KNOWN : count(loss.steps_lost);
  return (
    <li>
      <div className={classes.line}>
        <span>{loss.reason ? sentence(loss.reason.message) : "Cause not known"}</span>
        <span className="numeric">{cost(loss.cost)}</span>
      </div>
      <div className={classes.detail}>
        Attempt {loss.attempt}
        {loss.in_place ? ", restarted in place" : ""} · <Moment time={loss.time} /> · node {loss.node ?? NOT_KNOWN} · blame:{" "}
        {loss.reason?.blame ?? NOT_KNOWN}
      </div>
      <div className={classes.detail}>
        Steps repeated: {steps}
        {spent.length > 0 ? ` · ${spent.join(", ")}` : ""}
        {loss.refunded > 0 ? ` · ${cost(loss.refunded)} refunded` : ""}
      </div>
    </li>
  );
}
