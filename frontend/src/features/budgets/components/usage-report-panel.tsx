import { Button, Group, NativeSelect, Text } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";

import type { UsageReport } from "@/api/types";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { Panel } from "@/components/panel";
import { ProblemNotice } from "@/components/problem-notice";
import { usageReportAddress, usageReportQuery } from "@/features/budgets/api/budgets";
import { ACTIVITIES } from "@/lib/activities";
import { carbonText, energyText } from "@/lib/energy";
import { duration, money } from "@/lib/format";

type TeamMonth = UsageReport["items"][number];
type Unproductive = TeamMonth["unproductive"][number] & { team: string; currency: string };

const MONTHS = 13;

const amount = (found: { slot_seconds: number; cost: number }, currency: string) =>
  `${duration(found.slot_seconds)}, ${money(found.cost / 1e6, currency)}`;

const TEAMS: Column<TeamMonth>[] = [
  { name: "Team", cell: (row) => row.team },
  { name: "Used", end: true, cell: (row) => amount(row, row.currency) },
  { name: "Productive", end: true, cell: (row) => amount(row.productive, row.currency) },
  { name: "Not productive", end: true, cell: (row) => amount(sum(row.unproductive), row.currency) },
  { name: "Not divided yet", end: true, cell: (row) => amount(row.uncounted, row.currency) },
  {
    name: "Lost to faults, not charged",
    end: true,
    cell: (row) => amount({ slot_seconds: row.fault_slot_seconds, cost: row.fault_cost }, row.currency),
  },
  { name: "Energy", end: true, cell: (row) => energyText(row.energy) },
  { name: "CO₂", end: true, cell: (row) => carbonText(row.energy) },
];
const UNPRODUCTIVE: Column<Unproductive>[] = [
  { name: "Team", cell: (row) => row.team },
  { name: "Activity", cell: (row) => ACTIVITIES[row.activity].name },
  { name: "Cause", cell: (row) => row.reason?.code.replaceAll("_", " ") ?? "None known" },
  { name: "Slot time", end: true, cell: (row) => duration(row.slot_seconds) },
  { name: "Cost", end: true, cell: (row) => money(row.cost / 1e6, row.currency) },
];

/** A month by team: used, productive, not productive by activity and cause, lost to faults, energy and carbon. */
export function UsageReportPanel() {
  const [months] = useState(() => lastMonths(new Date()));
  const [month, setMonth] = useState(months[0] ?? "");
  const { data, error, refetch } = useQuery(usageReportQuery(month));
  const losses = (data?.items ?? []).flatMap(({ team, currency, unproductive }) =>
    unproductive.map((each): Unproductive => ({ ...each, team, currency })),
  );
  return (
    <Panel title="Monthly report">
      <Group align="flex-end" mb="sm">
        <NativeSelect label="Month (UTC)" data={months} value={month} onChange={(event) => setMonth(event.currentTarget.value)} />
        <Button component="a" href={usageReportAddress(month)} download variant="default">
          Export month as CSV
        </Button>
      </Group>
      {error ? <ProblemNotice error={error} onRetry={() => void refetch()} /> : null}
      {data?.items.length === 0 ? <Text size="sm">No usage in this month.</Text> : null}
      {data && data.items.length > 0 ? (
        <DataTable label="Usage by team" rows={data.items} columns={TEAMS} rowKey={(row) => `${row.team} ${row.currency}`} />
      ) : null}
      {losses.length > 0 ? (
        <DataTable
          label="What was not productive"
          rows={losses}
          columns={UNPRODUCTIVE}
          rowKey={(row) => String(losses.indexOf(row))}
        />
      ) : null}
    </Panel>
  );
}

function sum(unproductive: TeamMonth["unproductive"]) {
  return {
    slot_seconds: unproductive.reduce((total, each) => total + each.slot_seconds, 0),
    cost: unproductive.reduce((total, each) => total + each.cost, 0),
  };
}

/** This month and those before it, the newest first, as YYYY-MM in UTC. */
function lastMonths(now: Date): string[] {
  return Array.from({ length: MONTHS }, (_, back) =>
    new Date(Date.UTC(now.getUTCFullYear(), now.getUTCMonth() - back, 1)).toISOString().slice(0, 7),
  );
}
