import { Button, Checkbox, Group, Modal, NativeSelect, NumberInput, Stack, TextInput } from "@mantine/core";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import type { SubmitEvent } from "react";
import { useState } from "react";

import { acceleratorsQuery } from "@/api/accelerators";
import { errorAt } from "@/api/problem";
import type { Budget } from "@/api/types";
import { ProblemNotice } from "@/components/problem-notice";
import { budgetKeys, createBudget, nodesQuery } from "@/features/budgets/api/budgets";
import { THOUSANDS, toAmount } from "@/features/budgets/lib/amounts";
import { fieldsOf } from "@/lib/form";

/** A budget of a node of the quota tree. */
export function NewBudgetDialog({ onClose }: { onClose: () => void }) {
  const client = useQueryClient();
  const nodes = useQuery(nodesQuery());
  const accelerators = useQuery(acceleratorsQuery());
  const [unit, setUnit] = useState<Budget["unit"]>("slot_hours");
  const [currency, setCurrency] = useState("USD");
  const make = useMutation({
    mutationFn: createBudget,
    onSuccess: onClose,
    onSettled: () => client.invalidateQueries({ queryKey: budgetKeys.all }),
  });
  const save = (event: SubmitEvent<HTMLFormElement>) => {
    const field = fieldsOf(event);
    make.mutate({
      node_id: field("node"),
      name: field("name"),
      unit,
      ...(unit === "money" ? { currency: currency.toUpperCase() } : {}),
      ...(field("accelerator") ? { accelerator: field("accelerator") } : {}),
      period: field("period") as Budget["period"],
      amount: toAmount({ unit }, field("amount")),
      soft_percent: Number(field("soft_percent")),
      hard: field("hard") === "on",
    });
  };
  const choices = (nodes.data?.nodes ?? []).map((node) => ({ value: node.id, label: node.path || node.name }));
  return (
    <Modal opened onClose={onClose} title="New budget" centered>
      <form onSubmit={save}>
        <Stack>
          <TextInput label="Name" name="name" required maxLength={100} error={errorAt(make.error, "/name")} />
          <NativeSelect
            label="Owner"
            name="node"
            description="A team, a group or the organisation, including everything below it"
            data={choices}
            error={errorAt(make.error, "/node_id")}
          />
          <Group grow align="flex-start">
            <NativeSelect
              label="Unit"
              data={[
                { value: "slot_hours", label: "Slot-hours" },
                { value: "money", label: "Money" },
              ]}
              value={unit}
              onChange={(event) => setUnit(event.currentTarget.value as Budget["unit"])}
            />
            <NativeSelect label="Every" name="period" data={["day", "month", "quarter"]} defaultValue="month" />
          </Group>
          <Group grow align="flex-start">
            <NumberInput
              label={unit === "money" ? `Amount, ${currency || "in the currency"}` : "Slot-hours"}
              name="amount"
              min={0}
              thousandSeparator={THOUSANDS}
              required
              error={errorAt(make.error, "/amount")}
            />
            {unit === "money" ? (
              <TextInput
                label="Currency"
                maxLength={3}
                value={currency}
                onChange={(event) => setCurrency(event.currentTarget.value)}
                error={errorAt(make.error, "/currency")}
              />
            ) : null}
          </Group>
          <NativeSelect
            label="Accelerator"
            name="accelerator"
            data={[{ value: "", label: "All" }, ...(accelerators.data ?? [])]}
            error={errorAt(make.error, "/accelerator")}
          />
          <NumberInput label="Warn at, % spent" name="soft_percent" min={1} max={100} defaultValue={80} />
          <Checkbox
            label="Hard: nothing starts without it, and runs stop at a checkpoint when it is used up"
            name="hard"
          />
          {make.error ? <ProblemNotice error={make.error} /> : null}
          {nodes.error ? <ProblemNotice error={nodes.error} /> : null}
          <Group justify="flex-end">
            <Button variant="default" onClick={onClose}>
              Back
            </Button>
            <Button type="submit" loading={make.isPending} disabled={choices.length === 0}>
              Create budget
            </Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  );
}
