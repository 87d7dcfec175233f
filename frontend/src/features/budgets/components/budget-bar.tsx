import { Text } from "@mantine/core";

import type { Budget } from "@/api/types";
import { amountText, partsOf } from "@/features/budgets/lib/amounts";

import classes from "./budget-bar.module.css";

/** What is spent and reserved of the current period; the mark is what is likely spent at its end. */
export function BudgetBar({ budget }: { budget: Budget }) {
  const { current, forecast } = budget;
  if (current === null) return <Text size="sm">The period begins in a moment</Text>;
  const parts = partsOf(budget);
  const spent = `${amountText(budget, current.spent)} of ${amountText(budget, current.amount)} spent`;
  const reserved = `${amountText(budget, current.reserved)} reserved`;
  const left = `${amountText(budget, current.available)} left`;
  return (
    <div>
      <div className={classes.bar} role="img" aria-label={`${budget.name}: ${spent}, ${reserved}, ${left}`}>
        <div className={classes.spent} style={{ width: `${parts.spent}%` }} />
        <div className={classes.reserved} style={{ width: `${parts.reserved}%` }} />
        {parts.forecast !== null && forecast !== null ? (
          <div className={classes.forecast} style={{ left: `${parts.forecast}%` }} />
        ) : null}
      </div>
      <Text size="xs" c="dimmed" mt={4} className="numeric">
        {spent} · {reserved} · {left}
      </Text>
    </div>
  );
}
