import { Switch } from "@mantine/core";
import { useQueries } from "@tanstack/react-query";
import { useState } from "react";

import type { Json } from "@/api/types";
import { DataTable } from "@/components/data-table";
import { EmptyState } from "@/components/empty-state";
import { Panel } from "@/components/panel";
import { ProblemNotice } from "@/components/problem-notice";
import type { ComparedJob } from "@/features/compare/api/queries";
import { comparedCostQuery, comparedJobQuery } from "@/features/compare/api/queries";
import { count, duration, loss, money, NOTHING, percent, shortId } from "@/lib/format";
import { runTime } from "@/lib/run-time";
import { differs, sideBySide, withUnits } from "@/lib/spec-differences";
import { label } from "@/lib/status";
import { useNow } from "@/lib/use-now";

import classes from "./compared-tables.module.css";

const FIGURES: Record<string, (job: ComparedJob, now: number) => string> = {
  Status: (job) => label(job.status),
  "Training loss": ({ progress }) => loss(progress?.loss),
  "Validation loss": ({ validation_loss: both, progress }) => loss(both?.after ?? progress?.validation_loss),
  Steps: ({ progress }) =>
    progress ? `${progress.step.toLocaleString("en")} of ${progress.steps_total.toLocaleString("en")}` : NOTHING,
  "Tokens read": ({ progress }) => count(progress?.tokens_seen),
  "Tokens/s, mean": ({ progress }) => count(progress?.mean_tokens_per_second ?? progress?.tokens_per_second),
  "MFU, mean": ({ progress }) => percent(progress?.mean_mfu ?? progress?.mfu),
  "Ran for": (job, now) => duration(runTime(job, now)),
  Attempts: (job) => String(job.attempt_count),
};

/** The figures of the compared jobs, and the fields of their specs, a column for each job. */
export function ComparedTables({ ids }: { ids: string[] }) {
  const now = useNow(true);
  const found = useQueries({ queries: ids.map(comparedJobQuery) });
  const costs = useQueries({ queries: ids.map(comparedCostQuery) });
  const [all, setAll] = useState(false);
  const error = found.find((query) => query.error)?.error;
  if (error) return <ProblemNotice error={error} />;
  const jobs = found.flatMap((query) => (query.data ? [query.data] : []));
  if (jobs.length < ids.length) return null;

  const figures = Object.entries(FIGURES).map(([name, of]) => ({ name, values: jobs.map((job) => of(job, now)) }));
  const charged = costs.map(({ data }) => (data ? money(data.charged / 1e6, data.currency) : NOTHING));
  const fields = sideBySide(jobs.map((job) => job.resolved_spec)).filter((field) => field.path !== "name");
  const rows = (all ? fields : fields.filter(differs)).map((field) => ({
    name: field.path,
    values: field.values.map((value) => written(field.path, value)),
  }));
  const columnsUnder = (first: string, mono: boolean) => [
    {
      name: first,
      cell: (row: Row) => <span className={mono ? "mono" : undefined}>{row.name}</span>,
    },
    ...jobs.map((job, index) => ({
      name: `${job.name} ${shortId(job.id)}`,
      end: true,
      cell: (row: Row) => <span className={mono ? classes.value : "numeric"}>{row.values[index]}</span>,
    })),
  ];
  return (
    <>
      <Panel title="Figures" flush>
        <div className={classes.scroll}>
          <DataTable
            label="Figures of the compared jobs"
            rows={[...figures, { name: "Charged", values: charged }]}
            columns={columnsUnder("Figure", false)}
            rowKey={(row) => row.name}
          />
        </div>
      </Panel>
      <Panel
        title="Specs"
        flush
        tools={
          <Switch
            size="xs"
            label="Only differences"
            checked={!all}
            onChange={(event) => setAll(!event.currentTarget.checked)}
          />
        }
      >
        {rows.length === 0 ? (
          <EmptyState title="No differences">The resolved specs of these jobs are equal.</EmptyState>
        ) : (
          <div className={classes.scroll}>
            <DataTable
              label="Specs of the compared jobs"
              rows={rows}
              columns={columnsUnder("Field", true)}
              rowKey={(row) => row.name}
            />
          </div>
        )}
      </Panel>
    </>
  );
}

interface Row {
  name: string;
  values: string[];
}

function written(path: string, field: Json | undefined): string {
  if (field === undefined) return NOTHING;
  const value = withUnits(path, field);
  return typeof value === "string" ? value : JSON.stringify(value);
}
