import { useQuery, useQueryClient } from "@tanstack/react-query";

import type { Job } from "@/api/types";
import { Panel } from "@/components/panel";
import { ProblemNotice } from "@/components/problem-notice";
import { eventsQuery } from "@/features/job/api/queries";
import { Attempts } from "@/features/job/components/attempts";
import { ChartsPanel } from "@/features/job/components/charts-panel";
import { CostPanel } from "@/features/job/components/cost-panel";
import { EfficiencyPanel } from "@/features/job/components/efficiency-panel";
import { GoodputPanel } from "@/features/job/components/goodput-panel";
import { TimeTable } from "@/features/job/components/time-table";
import { Timeline } from "@/features/job/components/timeline";

import classes from "./overview-tab.module.css";

export function OverviewTab({ job }: { job: Job }) {
  const events = useQuery(eventsQuery(job, useQueryClient()));
  return (
    <div className={classes.columns}>
      <ChartsPanel job={job} />
      <div className={classes.side}>
        <TimeTable job={job} />
        <GoodputPanel job={job} />
        <EfficiencyPanel job={job} />
        <CostPanel job={job} />
        {job.attempts.length > 0 ? <Attempts job={job} /> : null}
        <Panel title="Timeline">
          {events.error ? <ProblemNotice error={events.error} /> : null}
          <Timeline events={events.data ?? []} />
        </Panel>
      </div>
    </div>
  );
}
