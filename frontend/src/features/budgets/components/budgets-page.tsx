import { Anchor, Button, Checkbox, Text } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { Link } from "react-router";

import { sessionQuery } from "@/api/session";
import type { Budget } from "@/api/types";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { EmptyState } from "@/components/empty-state";
import { PlusIcon } from "@/components/icons";
import { Moment } from "@/components/moment";
import { Page } from "@/components/page";
import { Panel } from "@/components/panel";
import { ProblemNotice } from "@/components/problem-notice";
import { budgetsQuery } from "@/features/budgets/api/budgets";
import { BudgetBar } from "@/features/budgets/components/budget-bar";
import { BudgetState } from "@/features/budgets/components/budget-state";
import { NewBudgetDialog } from "@/features/budgets/components/new-budget-dialog";
import { amountText } from "@/features/budgets/lib/amounts";

const COLUMNS: Column<Budget>[] = [
  {
    name: "Budget",
    cell: (budget) => (
      <>
        <Anchor component={Link} to={`/budgets/${budget.id}`} size="sm" fw={550}>
          {budget.name}
        </Anchor>
        <Text size="xs" c="dimmed">
          {budget.path}
        </Text>
      </>
    ),
  },
  {
    name: "Amount",
    quiet: true,
    cell: (budget) =>
      `${amountText(budget, budget.amount)} a ${budget.period}${budget.accelerator ? ` of ${budget.accelerator}` : ""}, ${budget.hard ? "hard" : "soft"}`,
  },
  { name: "Current period", cell: (budget) => <BudgetBar budget={budget} /> },
  {
    name: "Forecast",
    cell: (budget) =>
      budget.forecast ? (
        <>
          <Text size="sm" className="numeric">
            {amountText(budget, budget.forecast.p50)}
          </Text>
          {budget.forecast.exhausted_at ? (
            <Text size="xs" c="dimmed">
              used up <Moment time={budget.forecast.exhausted_at} />
            </Text>
          ) : null}
        </>
      ) : (
        "–"
      ),
  },
  { name: "State", cell: (budget) => <BudgetState budget={budget} /> },
];

/** What teams may spend, and whether it lasts. */
export function BudgetsPage() {
  const [all, setAll] = useState(false);
  const [making, setMaking] = useState(false);
  const budgets = useQuery(budgetsQuery(all));
  const session = useQuery(sessionQuery());
  const administers = session.data?.user?.platform_role === "platform_admin";
  const actions = administers ? (
    <Button leftSection={<PlusIcon size={16} />} onClick={() => setMaking(true)}>
      New budget
    </Button>
  ) : null;
  return (
    <Page title="Budgets" lead="Spending limits per period, spending to date, and forecasts." actions={actions}>
      {budgets.error ? (
        <ProblemNotice error={budgets.error} onRetry={() => void budgets.refetch()} />
      ) : null}
      <Checkbox label="Include closed" checked={all} onChange={(event) => setAll(event.currentTarget.checked)} />
      {budgets.data ? (
        <Panel flush>
          {budgets.data.items.length > 0 ? (
            <DataTable label="Budgets" rows={budgets.data.items} columns={COLUMNS} rowKey={(budget) => budget.id} />
          ) : (
            <EmptyState title="No budgets">
              No spending limit is set. Platform administrators create budgets for teams, groups or the organisation.
            </EmptyState>
          )}
        </Panel>
      ) : null}
      {making ? <NewBudgetDialog onClose={() => setMaking(false)} /> : null}
    </Page>
  );
}
