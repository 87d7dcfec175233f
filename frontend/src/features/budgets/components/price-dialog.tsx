import { Button, Checkbox, Group, Modal, MultiSelect, NumberInput, Stack, Text, TextInput } from "@mantine/core";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import type { SubmitEvent } from "react";
import { useState } from "react";

import type { PoolPrice, PoolPriceRule } from "@/api/types";
import { ProblemNotice } from "@/components/problem-notice";
import { budgetKeys, changePrice } from "@/features/budgets/api/budgets";
import { fieldsOf } from "@/lib/form";

const WEEKDAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"].map((label, index) => ({
  value: String(index),
  label,
}));
const PRICE_DECIMALS = 6; // as the server stores prices
const NEW: PoolPriceRule = {
  weekdays: [0, 1, 2, 3, 4],
  from_hour: 8,
  to_hour: 20,
  zone: "UTC",
  price_per_slot_hour: "1",
};

interface RuleFieldsProps {
  rule: PoolPriceRule;
  number: number;
  currency: string;
  onChange: (rule: PoolPriceRule) => void;
  onRemove: () => void;
}

function RuleFields({ rule, number, currency, onChange, onRemove }: RuleFieldsProps) {
  const hour = (name: "from_hour" | "to_hour", label: string, highest: number) => (
    <NumberInput
      label={label}
      min={name === "from_hour" ? 0 : 1}
      max={highest}
      value={rule[name]}
      onChange={(value) => onChange({ ...rule, [name]: Number(value) })}
    />
  );
  return (
    <Stack gap="xs" role="group" aria-label={`Rule ${number}`}>
      <MultiSelect
        label={`Days of rule ${number}`}
        data={WEEKDAYS}
        value={rule.weekdays.map(String)}
        onChange={(days) => onChange({ ...rule, weekdays: days.map(Number) })}
      />
      <Group grow align="flex-end">
        {hour("from_hour", "From hour", 23)}
        {hour("to_hour", "To hour", 24)}
        <NumberInput
          label={`Price per slot-hour, ${currency}`}
          min={0}
          decimalScale={PRICE_DECIMALS}
          value={Number(rule.price_per_slot_hour)}
          onChange={(value) => onChange({ ...rule, price_per_slot_hour: String(value) })}
        />
      </Group>
      <Group align="flex-end" justify="space-between">
        <TextInput
          label="Time zone"
          value={rule.zone}
          onChange={(event) => onChange({ ...rule, zone: event.currentTarget.value })}
        />
        <Button variant="subtle" color="red" onClick={onRemove}>
          Remove rule {number}
        </Button>
      </Group>
    </Stack>
  );
}

/** What a pool costs: a price, and rules that come before it. */
export function PriceDialog({ price, onClose }: { price: PoolPrice; onClose: () => void }) {
  const client = useQueryClient();
  const [rules, setRules] = useState<PoolPriceRule[]>(price.rules);
  const refresh = () => client.invalidateQueries({ queryKey: budgetKeys.prices });
  const save = useMutation({
    mutationFn: (change: Parameters<typeof changePrice>[1]) => changePrice(price.pool_id, change),
    onSuccess: onClose,
    onSettled: refresh,
  });
  const submit = (event: SubmitEvent<HTMLFormElement>) => {
    const field = fieldsOf(event);
    save.mutate({
      price_per_slot_hour: field("price") || "0",
      rules,
      spot: field("spot") === "on",
      watts_per_slot: field("watts") === "" ? null : Number(field("watts")),
    });
  };
  const replace = (index: number, rule: PoolPriceRule) => setRules(rules.map((old, at) => (at === index ? rule : old)));
  return (
    <Modal opened onClose={onClose} title={`Prices of ${price.cluster.name}/${price.pool}`} centered>
      <form onSubmit={submit}>
        <Stack>
          <NumberInput
            label={`Price per slot-hour, ${price.currency}`}
            description="When no rule applies"
            name="price"
            min={0}
            decimalScale={PRICE_DECIMALS}
            defaultValue={Number(price.price_per_slot_hour)}
          />
          {rules.map((rule, index) => (
            <RuleFields
              key={index}
              rule={rule}
              number={index + 1}
              currency={price.currency}
              onChange={(changed) => replace(index, changed)}
              onRemove={() => setRules(rules.filter((_, at) => at !== index))}
            />
          ))}
          <Group>
            <Button variant="default" size="compact-sm" onClick={() => setRules([...rules, NEW])}>
              Add a rule by weekday and hour
            </Button>
          </Group>
          <Checkbox label="Spot: the provider may reclaim machines" name="spot" defaultChecked={price.spot} />
          <NumberInput
            label="Watts per slot"
            description="For carbon figures; empty if unknown"
            name="watts"
            min={0}
            defaultValue={price.watts_per_slot ?? ""}
          />
          {save.error ? <ProblemNotice error={save.error} /> : null}
          <Text size="sm" c="dimmed">
            Usage before the change keeps its old price.
          </Text>
          <Group justify="flex-end">
            <Button variant="default" onClick={onClose}>
              Back
            </Button>
            <Button type="submit" loading={save.isPending}>
              Save
            </Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  );
}
