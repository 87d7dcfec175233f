import { ActionIcon, Button, Group, NativeSelect, NumberInput, Stack, Text, Title } from "@mantine/core";

import { CrossIcon } from "@/components/icons";
import type { GrantDraft } from "@/features/quotas/lib/draft";
import { NEW_GRANT } from "@/features/quotas/lib/draft";

interface GrantsEditorProps {
  grants: GrantDraft[];
  /** Accelerators to choose from. */
  known: string[];
  /** The organisation has nobody to borrow from or lend to. */
  isTop: boolean;
  errorAt: (accelerator: string, part: string) => string | undefined;
  onChange: (grants: GrantDraft[]) => void;
}

export function GrantsEditor({ grants, known, isTop, errorAt, onChange }: GrantsEditorProps) {
  const edit = (index: number, part: Partial<GrantDraft>) =>
    onChange(grants.map((grant, at) => (at === index ? { ...grant, ...part } : grant)));
  const parts = [
    { name: "nominal", label: "Own slots" },
    ...(isTop
      ? []
      : [
          { name: "borrow_limit", label: "Borrow limit" },
          { name: "lend_limit", label: "Lend limit" },
        ]),
  ] as { name: "nominal" | "borrow_limit" | "lend_limit"; label: string }[];
  return (
    <Stack gap="xs">
      <Group justify="space-between">
        <div>
          <Title order={3} size="sm">
            Slots by accelerator
          </Title>
          <Text size="xs" c="dimmed">
            Own slots can be reclaimed from borrowers. Borrow limit empty: unlimited. Lend limit empty: all own slots.
          </Text>
        </div>
        <Button size="compact-sm" variant="default" onClick={() => onChange([...grants, NEW_GRANT])}>
          Add an accelerator
        </Button>
      </Group>
      {grants.map((grant, index) => (
        <Group key={index} align="flex-end" gap="xs" role="group" aria-label={`Slots of ${grant.accelerator || "a new accelerator"}`}>
          <NativeSelect
            label="Accelerator"
            data={[
              ...(grant.accelerator ? [] : [{ value: "", label: "Choose" }]),
              ...new Set([...known, ...(grant.accelerator ? [grant.accelerator] : [])]),
            ]}
            w={{ base: "100%", xs: 130 }}
            value={grant.accelerator}
            error={errorAt(grant.accelerator, "accelerator")}
            onChange={(event) => edit(index, { accelerator: event.currentTarget.value })}
          />
          {parts.map(({ name, label }) => (
            <NumberInput
              key={name}
              label={label}
              min={0}
              allowDecimal={false}
              flex={1}
              miw={80}
              value={grant[name]}
              error={errorAt(grant.accelerator, name)}
              onChange={(value) => edit(index, { [name]: value })}
            />
          ))}
          <ActionIcon
            variant="subtle"
            color="red"
            size={34}
            aria-label={`Remove the grant of ${grant.accelerator || "the new accelerator"}`}
            onClick={() => onChange(grants.filter((_, at) => at !== index))}
          >
            <CrossIcon size={16} />
          </ActionIcon>
        </Group>
      ))}
    </Stack>
  );
}
