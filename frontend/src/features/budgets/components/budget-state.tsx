import type { Budget } from "@/api/types";
import { Pill } from "@/components/pill";

/** In a word: whether it lasts. */
export function BudgetState({ budget }: { budget: Budget }) {
  const { current, forecast } = budget;
  if (!budget.active) return <Pill tone="muted">closed</Pill>;
  if (current === null) return <Pill tone="waiting">opening</Pill>;
  if (current.spent >= current.amount) return <Pill tone="bad">used up</Pill>;
  if (forecast?.exhausted_at) return <Pill tone="waiting">will not last</Pill>;
  if (current.warned_at) return <Pill tone="waiting">nearly used up</Pill>;
  return <Pill tone="good">lasts</Pill>;
}
