import { Anchor, Button, Group, NativeSelect, Text } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { Link } from "react-router";

import type { CostRow, Costs } from "@/api/types";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { EmptyState } from "@/components/empty-state";
import { Page } from "@/components/page";
import { Panel } from "@/components/panel";
import { ProblemNotice } from "@/components/problem-notice";
import { costsAddress, costsQuery } from "@/features/budgets/api/budgets";
import { GoodputStatementPanel } from "@/features/budgets/components/goodput-statement";
import { UsageReportPanel } from "@/features/budgets/components/usage-report-panel";
import { figure } from "@/features/budgets/lib/amounts";

const DAY_MS = 86_400_000;
const PERIODS = [
  { value: "1", label: "The last day" },
  { value: "7", label: "The last 7 days" },
  { value: "30", label: "The last 30 days" },
  { value: "90", label: "The last 90 days" },
  { value: "365", label: "The last year" },
];
const GROUPS = [
  { value: "team", label: "team" },
  { value: "project", label: "project" },
  { value: "team,project", label: "team and project" },
  { value: "person", label: "person" },
  { value: "project,person", label: "project and person" },
  { value: "job", label: "job" },
  { value: "accelerator", label: "accelerator" },
  { value: "cluster,pool", label: "cluster and pool" },
  { value: "day", label: "day" },
  { value: "day,team", label: "day and team" },
];
const NAMES = ["day", "team", "project", "person", "job", "accelerator", "cluster", "pool"] as const;

const money = (micro: number, currency: string) => `${figure(micro / 1e6)} ${currency}`;
const hours = (seconds: number) => `${figure(seconds / 3600)} h`;
/** CO₂, which is not counted for pools without a known power per slot and carbon intensity. */
const grams = (row: CostRow, milligrams: number) => (row.milligrams ? `${figure(milligrams / 1e6)} kg` : "Not known");

const FIGURES: Column<CostRow>[] = [
  { name: "Slot-hours", end: true, cell: (row) => hours(row.slot_seconds) },
  { name: "Charged", end: true, cell: (row) => money(row.charged, row.currency) },
  {
    name: "Lost to faults",
    end: true,
    cell: (row) => `${hours(row.fault_slot_seconds)}, ${money(row.fault_cost, row.currency)}`,
  },
  { name: "Saved by deferring", end: true, cell: (row) => money(row.saved_cost, row.currency) },
  { name: "CO₂", end: true, quiet: true, cell: (row) => grams(row, row.milligrams) },
  { name: "CO₂ saved", end: true, quiet: true, cell: (row) => grams(row, row.saved_milligrams) },
];

function name(row: CostRow, group: (typeof NAMES)[number]) {
  if (group === "job" && row.job) {
    return (
      <Anchor component={Link} to={`/jobs/${row.job}`} size="sm" title={row.job}>
        {row.job_name}
      </Anchor>
    );
  }
  return row[group] ?? "Not shown";
}

/** The sums of the people or jobs that are not in the table, and why some have no name. */
function Notes({ costs }: { costs: Costs }) {
  const hidden = costs.items.some((row) => row.person === null || row.job === null);
  return (
    <>
      {costs.rest.map((rest) => (
        <Text key={rest.currency} size="sm">
          And {rest.groups.toLocaleString("en-GB")} more: {hours(rest.slot_seconds)}, {money(rest.charged, rest.currency)}{" "}
          charged. The CSV export lists up to 20,000.
        </Text>
      ))}
      {hidden ? (
        <Text size="sm" c="dimmed">
          Not shown: people and jobs of teams that are not yours, and usage that an earlier version did not store by job.
        </Text>
      ) : null}
    </>
  );
}

/** What was used and what it cost; faults and savings apart. */
export function CostsPage() {
  const [days, setDays] = useState("30");
  const [by, setBy] = useState("team");
  // Full hours, so that the query key does not change while the page is open.
  const [now] = useState(() => Math.ceil(Date.now() / 3_600_000) * 3_600_000);
  const filters = {
    after: new Date(now - Number(days) * DAY_MS).toISOString(),
    before: new Date(now).toISOString(),
    by,
  };
  const costs = useQuery(costsQuery(filters));
  const names = NAMES.filter((name) => by.split(",").includes(name));
  const columns: Column<CostRow>[] = [
    ...names.map((group) => ({
      name: group.charAt(0).toUpperCase() + group.slice(1),
      cell: (row: CostRow) => name(row, group),
    })),
    ...FIGURES,
  ];
  const key = (row: CostRow) => [...names.map((group) => row[group] ?? ""), row.currency].join(" ");
  const actions = (
    <Button component="a" href={costsAddress(filters)} download variant="default">
      Export as CSV
    </Button>
  );
  return (
    <Page
      title="Costs"
      lead="Usage and cost of jobs. Infrastructure faults are not charged."
      actions={actions}
    >
      <Group align="flex-end">
        <NativeSelect label="Time" data={PERIODS} value={days} onChange={(event) => setDays(event.currentTarget.value)} />
        <NativeSelect label="By" data={GROUPS} value={by} onChange={(event) => setBy(event.currentTarget.value)} />
      </Group>
      {costs.error ? <ProblemNotice error={costs.error} onRetry={() => void costs.refetch()} /> : null}
      {costs.data ? (
        <Panel flush>
          {costs.data.items.length > 0 ? (
            <DataTable label="Costs" rows={costs.data.items} columns={columns} rowKey={key} />
          ) : (
            <EmptyState title="No usage">None of your jobs ran in this period.</EmptyState>
          )}
        </Panel>
      ) : null}
      {costs.data ? <Notes costs={costs.data} /> : null}
      <GoodputStatementPanel after={filters.after} before={filters.before} />
      <UsageReportPanel />
    </Page>
  );
}
