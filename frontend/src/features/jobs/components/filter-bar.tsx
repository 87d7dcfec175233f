import { Kbd, NativeSelect, SegmentedControl, TextInput } from "@mantine/core";
import { useDebouncedCallback } from "@mantine/hooks";
import { useEffect, useRef, useState } from "react";

import type { Team } from "@/api/types";
import { SearchIcon } from "@/components/icons";
import type { FilterState } from "@/features/jobs/hooks/use-job-filters";
import type { StatusGroup } from "@/lib/status";
import { isStatusGroup, label, STATUS_GROUPS } from "@/lib/status";

import classes from "./filter-bar.module.css";

const TYPING_PAUSE_MS = 250;

interface FilterBarProps {
  state: FilterState;
  teams: Team[];
  onChange: (part: Partial<FilterState>) => void;
}

function isTyping(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && target.closest("input, textarea, select, [contenteditable]") !== null;
}

export function FilterBar({ state, teams, onChange }: FilterBarProps) {
  const [typed, setTyped] = useState(state.q);
  const field = useRef<HTMLInputElement>(null);
  const search = useDebouncedCallback((q: string) => onChange({ q: q.trim() }), TYPING_PAUSE_MS);

  useEffect(() => {
    const focusSearch = (event: KeyboardEvent) => {
      if (event.key !== "/" || event.ctrlKey || event.metaKey || isTyping(event.target)) return;
      event.preventDefault();
      field.current?.focus();
    };
    window.addEventListener("keydown", focusSearch);
    return () => window.removeEventListener("keydown", focusSearch);
  }, []);

  const groups = Object.keys(STATUS_GROUPS) as StatusGroup[];
  return (
    <search className={classes.bar}>
      <TextInput
        ref={field}
        className={classes.search ?? ""}
        type="search"
        aria-label="Search jobs by name or id"
        placeholder="Name or id"
        leftSection={<SearchIcon size={16} />}
        rightSection={<Kbd size="xs">/</Kbd>}
        value={typed}
        onChange={(event) => {
          setTyped(event.currentTarget.value);
          search(event.currentTarget.value);
        }}
      />
      <div className={classes.groups}>
        <SegmentedControl
          aria-label="Status"
          size="sm"
          value={state.group}
          onChange={(group) => {
            if (isStatusGroup(group)) onChange({ group });
          }}
          data={groups.map((group) => ({ value: group, label: label(group) }))}
        />
      </div>
      {teams.length > 1 ? (
        <NativeSelect
          aria-label="Team"
          value={state.team}
          onChange={(event) => onChange({ team: event.currentTarget.value })}
          data={[
            { value: "", label: "All teams" },
            ...teams.map((team) => ({ value: team.name, label: team.name })),
          ]}
        />
      ) : null}
    </search>
  );
}
