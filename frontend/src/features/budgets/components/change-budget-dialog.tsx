import { Button, Checkbox, Group, Modal, NumberInput, Stack, Text, TextInput } from "@mantine/core";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import type { SubmitEvent } from "react";

import { errorAt } from "@/api/problem";
import { ProblemNotice } from "@/components/problem-notice";
import type { ReadBudget } from "@/features/budgets/api/budgets";
import { budgetKeys, changeBudget } from "@/features/budgets/api/budgets";
import { scaleOf, THOUSANDS, toAmount } from "@/features/budgets/lib/amounts";
import { fieldsOf } from "@/lib/form";

/** The editable fields of a budget; a new amount takes effect immediately. */
export function ChangeBudgetDialog({ read, onClose }: { read: ReadBudget; onClose: () => void }) {
  const { budget, tag } = read;
  const client = useQueryClient();
  const change = useMutation({
    mutationFn: (facts: Parameters<typeof changeBudget>[2]) => changeBudget(budget.id, tag, facts),
    onSuccess: onClose,
    onSettled: () => client.invalidateQueries({ queryKey: budgetKeys.all }),
  });
  const save = (event: SubmitEvent<HTMLFormElement>) => {
    const field = fieldsOf(event);
    change.mutate({
      name: field("name"),
      amount: toAmount(budget, field("amount")),
      soft_percent: Number(field("soft_percent")),
      hard: field("hard") === "on",
      active: field("active") === "on",
    });
  };
  return (
    <Modal opened onClose={onClose} title={`Budget ${budget.name}`} centered>
      <form onSubmit={save}>
        <Stack>
          <TextInput label="Name" name="name" defaultValue={budget.name} required error={errorAt(change.error, "/name")} />
          <NumberInput
            label={budget.unit === "money" ? `Amount, ${budget.currency}` : "Slot-hours"}
            name="amount"
            min={0}
            thousandSeparator={THOUSANDS}
            required
            defaultValue={budget.amount / scaleOf(budget)}
            error={errorAt(change.error, "/amount")}
          />
          <NumberInput label="Warn at, % spent" name="soft_percent" min={1} max={100} defaultValue={budget.soft_percent} />
          <Checkbox
            label="Hard: jobs start only within it, and runs stop at a checkpoint when it is used up"
            name="hard"
            defaultChecked={budget.hard}
          />
          <Checkbox label="Active: usage is charged to it" name="active" defaultChecked={budget.active} />
          <Text size="sm" c="dimmed">
            Takes effect immediately, including in this period. If a hard budget falls below what is reserved, the newest
            runs save a checkpoint and return to the queue.
          </Text>
          {change.error ? <ProblemNotice error={change.error} /> : null}
          <Group justify="flex-end">
            <Button variant="default" onClick={onClose}>
              Back
            </Button>
            <Button type="submit" loading={change.isPending}>
              Save
            </Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  );
}
