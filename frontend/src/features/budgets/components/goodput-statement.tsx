import { Anchor, NativeSelect } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { Link } from "react-router";

import type { GoodputStatement } from "@/api/types";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { GoodputSums } from "@/components/goodput-sums";
import { Panel } from "@/components/panel";
import { ProblemNotice } from "@/components/problem-notice";
import { costsQuery, goodputStatementQuery } from "@/features/budgets/api/budgets";
import { count, duration, money } from "@/lib/format";

type Sums = GoodputStatement["items"][number];
type Cause = Sums["interruptions"][number];
type JobRow = Sums["jobs"][number];

/** What the slots of a team were held for in a time range, what interrupted its jobs, and which lost the most. */
export function GoodputStatementPanel({ after, before }: { after: string; before: string }) {
  const [team, setTeam] = useState("");
  const range = { after, before };
  const teams = useQuery(costsQuery({ ...range, by: "team" }));
  const { data, error, refetch } = useQuery(goodputStatementQuery(team ? { ...range, team } : range));
  const names = [...new Set(teams.data?.items.map((row) => row.team ?? "").filter(Boolean))];
  if (error) {
    return (
      <Panel title="Goodput">
        <ProblemNotice error={error} onRetry={() => void refetch()} />
      </Panel>
    );
  }
  if (!data || (data.items.length === 0 && !team)) return null;
  return (
    <Panel title="Goodput">
      {names.length > 1 ? (
        <NativeSelect
          label="Team"
          data={[{ value: "", label: "All teams" }, ...names]}
          value={team}
          onChange={(event) => setTeam(event.currentTarget.value)}
          mb="sm"
        />
      ) : null}
      {data.items.map((sums) => (
        <div key={sums.currency}>
          <GoodputSums sums={sums} />
          {sums.interruptions.length > 0 ? (
            <DataTable
              label={`Interruptions, ${sums.currency}`}
              rows={sums.interruptions}
              columns={causeColumns(sums.currency)}
              rowKey={(row) => row.reason?.code ?? ""}
            />
          ) : null}
          {sums.jobs.length > 0 ? (
            <DataTable
              label={`Jobs with the most slot time that was not productive, ${sums.currency}`}
              rows={sums.jobs}
              columns={jobColumns(sums.currency)}
              rowKey={(row) => row.id ?? `hidden-${sums.jobs.indexOf(row)}`}
            />
          ) : null}
        </div>
      ))}
    </Panel>
  );
}

function causeColumns(currency: string): Column<Cause>[] {
  const cost = (micro: number) => money(micro / 1e6, currency);
  return [
    { name: "Reason", cell: (row) => row.reason?.code.replaceAll("_", " ") ?? "Not known" },
    { name: "Blame", cell: (row) => row.reason?.blame ?? "not known" },
    { name: "Attempts ended", end: true, cell: (row) => count(row.attempts) },
    { name: "Restarts in place", end: true, cell: (row) => count(row.restarts) },
    { name: "Steps repeated", end: true, cell: (row) => count(row.steps_lost) },
    { name: "Lost", end: true, cell: (row) => duration(row.lost_slot_seconds) },
    { name: "No progress", end: true, cell: (row) => duration(row.stalled_slot_seconds) },
    { name: "Start-up", end: true, cell: (row) => duration(row.startup_slot_seconds) },
    { name: "Cost", end: true, cell: (row) => cost(row.cost) },
    { name: "Refunded", end: true, cell: (row) => cost(row.refunded) },
  ];
}

function jobColumns(currency: string): Column<JobRow>[] {
  return [
    {
      name: "Job",
      cell: (row) =>
        row.id ? (
          <Anchor component={Link} to={`/jobs/${row.id}`} size="sm" title={row.id}>
            {row.name}
          </Anchor>
        ) : (
          "Not shown"
        ),
    },
    { name: "Slot time", end: true, cell: (row) => duration(row.slot_seconds) },
    { name: "Not productive", end: true, cell: (row) => duration(row.unproductive_slot_seconds) },
    { name: "Cost of that", end: true, cell: (row) => money(row.unproductive_cost / 1e6, currency) },
  ];
}
