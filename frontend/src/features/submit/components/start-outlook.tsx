import { Anchor, Stack, Text } from "@mantine/core";

import type { Plan } from "@/api/types";
import { duration, money } from "@/lib/format";

import classes from "./plan-panel.module.css";

type Start = Plan["start"];

/** When the job would start, what it would reserve of which budgets, and what would start sooner. */
export function StartOutlook({ plan }: { plan: Plan }) {
  const { start } = plan;
  return (
    <Stack gap={6}>
      <Text size="sm" fw={600}>
        {start.starts_now ? "It would start immediately." : `It would wait: ${whenOf(start)}.`}
      </Text>
      {start.reason ? (
        <Text size="sm" c="dimmed">
          {start.reason.message} {start.unblocks}
        </Text>
      ) : null}
      {plan.budgets.map((budget) => (
        <Text key={budget.name} size="sm" c={budget.reserves > budget.available ? "var(--tone-bad)" : "dimmed"}>
          Reserves {money(budget.reserves, budget.unit)} of budget {budget.name}, which has{" "}
          {money(budget.available, budget.unit)} left.
        </Text>
      ))}
      {plan.alternatives.length > 0 ? (
        <ul className={classes.alternatives} aria-label="Alternatives">
          {plan.alternatives.map((each) => (
            <li key={each.label}>
              <span>{each.label}</span>
              <span>
                {each.start.starts_now ? "starts immediately" : whenOf(each.start)}
                {`, ${money(each.cost.amount, each.cost.currency)}`}
              </span>
            </li>
          ))}
        </ul>
      ) : null}
      {start.starts_now ? null : (
        <Anchor href="/queue" size="sm">
          Show the queue
        </Anchor>
      )}
    </Stack>
  );
}

function whenOf(start: Start): string {
  if (start.p50_seconds === null) return "no estimate yet";
  const latest = start.p90_seconds === null ? "" : `, 90 % within ${duration(start.p90_seconds)}`;
  return `about ${duration(start.p50_seconds)}${latest}`;
}
