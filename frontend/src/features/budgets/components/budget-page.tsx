import { Anchor, Button, Group, SimpleGrid, Text } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import { Link, useParams } from "react-router";

import { sessionQuery } from "@/api/session";
import type { Budget, BudgetLine, BudgetStatement } from "@/api/types";
import { ChartCard } from "@/charts/chart-card";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { EmptyState } from "@/components/empty-state";
import { Page } from "@/components/page";
import { PageSkeleton } from "@/components/page-skeleton";
import { Panel } from "@/components/panel";
import { ProblemNotice } from "@/components/problem-notice";
import { budgetQuery, statementAddress, statementQuery } from "@/features/budgets/api/budgets";
import { BudgetBar } from "@/features/budgets/components/budget-bar";
import { BudgetState } from "@/features/budgets/components/budget-state";
import { ChangeBudgetDialog } from "@/features/budgets/components/change-budget-dialog";
import { amountText, scaleOf } from "@/features/budgets/lib/amounts";
import { moment, shortId } from "@/lib/format";

const seconds = (time: string) => Date.parse(time) / 1000;

/** What is spent, hour by hour; and from now on what is likely, up to the period's end. */
function linesOf(budget: Budget, statement: BudgetStatement, now: number) {
  const scale = scaleOf(budget);
  const { start, end, spent } = statement.period;
  // Of the hour that is not over yet, its end has not come either.
  const burnt = statement.burn_down.map((point) => ({ at: Math.min(seconds(point.time), now), spent: point.spent }));
  const zero = budget.period === "day" ? seconds(start) : 0;
  const steps = [seconds(start), ...burnt.map((point) => point.at)].map((at) => at - zero);
  const lines = [
    {
      label: "Spent",
      color: "--series-1",
      series: { steps, values: [0, ...burnt.map((point) => point.spent / scale)] },
    },
    {
      label: "Amount",
      color: "--series-3",
      series: {
        steps: [seconds(start) - zero, seconds(end) - zero],
        values: [statement.period.amount / scale, statement.period.amount / scale],
      },
    },
  ];
  if (budget.forecast !== null && seconds(end) > now) {
    lines.push({
      label: "Likely",
      color: "--series-2",
      series: { steps: [now - zero, seconds(end) - zero], values: [spent / scale, budget.forecast.p50 / scale] },
    });
  }
  return lines;
}

function Figure({ name, text, note }: { name: string; text: string; note?: string | undefined }) {
  return (
    <div>
      <Text size="xs" c="dimmed">
        {name}
      </Text>
      <Text size="lg" fw={550} className="numeric">
        {text}
      </Text>
      {note ? (
        <Text size="xs" c="dimmed">
          {note}
        </Text>
      ) : null}
    </div>
  );
}

function Figures({ budget }: { budget: Budget }) {
  const { current, forecast } = budget;
  if (current === null || forecast === null) return null;
  const show = (amount: number) => amountText(budget, amount);
  return (
    <SimpleGrid cols={{ base: 2, sm: 3, lg: 6 }}>
      <Figure name="Spent" text={show(current.spent)} note={`of ${show(current.amount)}`} />
      <Figure name="Reserved" text={show(current.reserved)} note="for jobs that hold slots" />
      <Figure name="Left" text={show(current.available)} />
      <Figure
        name="Forecast for the end"
        text={show(forecast.p50)}
        note={forecast.p90 === null ? "at the current rate" : `90 %: up to ${show(forecast.p90)}`}
      />
      <Figure name="Used up" text={forecast.exhausted_at ? moment(forecast.exhausted_at) : "not in this period"} />
      <Figure name="Paid back" text={show(current.lost)} note="lost to the infrastructure" />
    </SimpleGrid>
  );
}

function Statement({ budget, statement }: { budget: Budget; statement: BudgetStatement }) {
  const show = (amount: number) => amountText(budget, amount);
  const columns: Column<BudgetLine>[] = [
    {
      name: "Job",
      cell: (line) => (
        <Anchor component={Link} to={`/jobs/${line.job_id}`} size="sm" className="mono">
          {shortId(line.job_id)}
        </Anchor>
      ),
    },
    { name: "Team", cell: (line) => line.team.name },
    { name: "Spent", end: true, cell: (line) => show(line.spent) },
    { name: "Reserved", end: true, cell: (line) => show(line.reserved) },
    { name: "Refunded", end: true, quiet: true, cell: (line) => show(line.refunded) },
  ];
  const tools = (
    <Button component="a" href={statementAddress(budget.id)} download size="compact-sm" variant="default">
      Export ledger as CSV
    </Button>
  );
  return (
    <Panel title="Statement" tools={tools} flush>
      {statement.lines.length > 0 ? (
        <DataTable label="Statement" rows={statement.lines} columns={columns} rowKey={(line) => line.job_id} />
      ) : (
        <EmptyState title="No spending by your teams">In this period, up to now.</EmptyState>
      )}
      <Text size="sm" c="dimmed" p="sm">
        Others: {show(statement.others.spent)} spent, {show(statement.others.reserved)} reserved.
      </Text>
    </Panel>
  );
}

/** One budget: how its period goes, and on what it was spent. */
export function BudgetPage() {
  const id = useParams()["budgetId"] ?? "";
  const [changing, setChanging] = useState(false);
  const read = useQuery(budgetQuery(id));
  const statement = useQuery(statementQuery(id));
  const session = useQuery(sessionQuery());
  const budget = read.data?.budget;
  const updatedAt = statement.dataUpdatedAt / 1000;
  const lines = useMemo(
    () => (budget && statement.data ? linesOf(budget, statement.data, updatedAt) : []),
    [budget, statement.data, updatedAt],
  );
  if (read.error || read.data === undefined || budget === undefined) {
    return <PageSkeleton title="Budget" error={read.error} onRetry={() => void read.refetch()} />;
  }
  const administers = session.data?.user?.platform_role === "platform_admin";
  const lead = (
    <Group gap="xs">
      <BudgetState budget={budget} />
      <span>
        {budget.path}: {amountText(budget, budget.amount)} a {budget.period}
        {budget.accelerator ? ` of ${budget.accelerator}` : ""}, {budget.hard ? "hard" : "soft"}
      </span>
    </Group>
  );
  return (
    <Page
      title={budget.name}
      lead={lead}
      actions={administers ? <Button onClick={() => setChanging(true)}>Change</Button> : null}
    >
      <Panel title="This period">
        <BudgetBar budget={budget} />
        <div style={{ height: 16 }} />
        <Figures budget={budget} />
      </Panel>
      {statement.error ? <ProblemNotice error={statement.error} onRetry={() => void statement.refetch()} /> : null}
      {statement.data ? (
        <>
          <ChartCard
            title={budget.unit === "money" ? `Spent, ${budget.currency}` : "Spent, slot-hours"}
            axis={budget.period === "day" ? "time" : "day"}
            unit="plain"
            group={`budget-${budget.id}`}
            lines={lines}
          />
          <Statement budget={budget} statement={statement.data} />
        </>
      ) : null}
      {changing ? <ChangeBudgetDialog read={read.data} onClose={() => setChanging(false)} /> : null}
    </Page>
  );
}
