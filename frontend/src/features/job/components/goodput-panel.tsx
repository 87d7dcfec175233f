import { useQuery } from "@tanstack/react-query";

import type { Goodput, Job } from "@/api/types";
import { GoodputSums } from "@/components/goodput-sums";
import { Moment } from "@/components/moment";
import { Panel } from "@/components/panel";
import { ProblemNotice } from "@/components/problem-notice";
import { goodputQuery } from "@/features/job/api/queries";
import { count, duration, money } from "@/lib/format";
import { sentence } from "@/lib/text";

import classes from "@/components/goodput-sums.module.css";

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
      <GoodputSums sums={data} />
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
