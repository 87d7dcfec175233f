import type { ReactNode } from "react";

import type { Job } from "@/api/types";
import { Panel } from "@/components/panel";
import { taskOf } from "@/features/job/lib/task";
import { NOTHING, count, duration, loss, percent } from "@/lib/format";
import { runTime } from "@/lib/run-time";
import { label } from "@/lib/status";
import { useNow } from "@/lib/use-now";

import classes from "./progress-panel.module.css";

interface Figure {
  name: string;
  value: string;
  note?: string;
}

function throughput({ progress }: Job): Figure {
  const mean = progress?.mean_tokens_per_second ?? progress?.tokens_per_second;
  const mfu = progress?.mean_mfu ?? progress?.mfu;
  const notes = [
    ...(progress?.tokens_per_second != null ? [`newest step ${count(progress.tokens_per_second)}`] : []),
    ...(mfu != null ? [`MFU ${percent(mfu)}`] : []),
  ];
  return { name: "Tokens per second, mean", value: count(mean), ...(notes.length > 0 ? { note: notes.join(" · ") } : {}) };
}

function figures(job: Job, now: number): Figure[] {
  const { progress, validation_loss: held } = job;
  const list: Figure[] = [
    { name: "Training loss", value: loss(progress?.loss) },
    {
      name: "Validation loss",
      value: loss(held?.after ?? progress?.validation_loss),
      ...(held?.before != null ? { note: `from ${loss(held.before)}` } : {}),
    },
    throughput(job),
    { name: "Tokens seen", value: count(progress?.tokens_seen) },
    { name: "Ran for", value: duration(runTime(job, now)) },
  ];
  if (job.status === "running") list.push({ name: "Time left", value: duration(progress?.eta_seconds) });
  return taskOf(job) === "training" ? list : list.filter(({ value }) => value !== NOTHING);
}

function headline(job: Job): ReactNode {
  const { progress } = job;
  if (progress === null) return label(job.status);
  const endedEarly = job.status === "succeeded" && progress.step < progress.steps_total;
  const activity = endedEarly ? "ended early" : job.status === "running" ? progress.phase.replaceAll("_", " ") : "";
  return (
    <>
      Step {progress.step.toLocaleString("en")} of {progress.steps_total.toLocaleString("en")}
      <span className="soft">{activity === "" ? "" : ` · ${activity}`}</span>
    </>
  );
}

export function ProgressPanel({ job }: { job: Job }) {
  const now = useNow(job.running_since !== null);
  const { progress } = job;
  const total = progress?.steps_total ?? 0;
  const share = progress && total > 0 ? Math.min(1, progress.step / total) : 0;
  return (
    <Panel>
      <div className={classes.line}>
        <span className={classes.headline}>{headline(job)}</span>
        <span className="soft numeric">{total > 0 ? `${Math.floor(share * 100)}%` : ""}</span>
      </div>
      <div
        className={classes.track}
        role="progressbar"
        aria-label="Steps done"
        aria-valuemin={0}
        aria-valuemax={total || 1}
        aria-valuenow={progress?.step ?? 0}
      >
        <div className={classes.fill} data-live={job.status === "running"} style={{ width: `${share * 100}%` }} />
      </div>
      <dl className={classes.figures}>
        {figures(job, now).map((figure) => (
          <div key={figure.name}>
            <dt>{figure.name}</dt>
            <dd>
              {figure.value}
              {figure.note ? <small>{figure.note}</small> : null}
            </dd>
          </div>
        ))}
      </dl>
    </Panel>
  );
}
