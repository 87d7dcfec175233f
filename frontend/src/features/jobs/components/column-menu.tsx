import { Button, MultiSelect, Popover, Stack, Text } from "@mantine/core";

import type { ListedJob } from "@/features/jobs/lib/columns";
import { choicesOf, columnOf, DEFAULT_COLUMNS } from "@/features/jobs/lib/columns";

interface ColumnMenuProps {
  columns: string[];
  jobs: ListedJob[];
  opened: boolean;
  onOpen: (opened: boolean) => void;
  onChange: (columns: string[]) => void;
}

/** Chooses the columns of the table, in the order in which they were added. */
export function ColumnMenu({ columns, jobs, opened, onOpen, onChange }: ColumnMenuProps) {
  const choices = choicesOf(jobs);
  const known = new Set(choices.flatMap(({ items }) => items.map(({ value }) => value)));
  // A column of a field that none of these jobs has can still be removed.
  const others = columns.filter((id) => !known.has(id)).map((id) => ({ value: id, label: columnOf(id)?.heading ?? id }));
  const data = [...choices, { group: "Not in these jobs", items: others }].filter(({ items }) => items.length > 0);
  return (
    <Popover opened={opened} onChange={onOpen} position="bottom-end" width={420} shadow="md" trapFocus>
      <Popover.Target>
        <Button variant="default" aria-expanded={opened} onClick={() => onOpen(!opened)}>
          Columns
        </Button>
      </Popover.Target>
      <Popover.Dropdown maw="calc(100vw - 32px)">
        <Stack gap="sm">
          <MultiSelect
            label="Columns"
            data={data}
            value={columns}
            onChange={onChange}
            searchable
            hidePickedOptions
            maxDropdownHeight={280}
            nothingFoundMessage="No such column"
            comboboxProps={{ withinPortal: false }}
          />
          <Text size="xs" c="dimmed">
            Fields of the spec are those of the jobs in the table. The address keeps your choice.
          </Text>
          <Button size="compact-sm" variant="subtle" onClick={() => onChange(DEFAULT_COLUMNS)}>
            Usual columns
          </Button>
        </Stack>
      </Popover.Dropdown>
    </Popover>
  );
}
