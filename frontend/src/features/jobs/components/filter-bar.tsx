import { Kbd, NativeSelect, SegmentedControl, TextInput } from "@mantine/core";
import { useDebouncedCallback } from "@mantine/hooks";
import { useEffect, useRef, useState } from "react";

import type { Team } from "@/api/types";
import { SearchIcon } from "@/components/icons";
import { MoreFilters } from "@/features/jobs/components/more-filters";
import type { FilterState } from "@/features/jobs/hooks/use-job-filters";
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
  // The address also changes without this field: by the back button, or when all filters are dropped. What this field
  // itself has put there may arrive when more has been typed already.
  const [known, setKnown] = useState(state.q);
  const [sent, setSent] = useState(state.q);
  if (known !== state.q) {
    setKnown(state.q);
    if (state.q !== sent) {
      setTyped(state.q);
      setSent(state.q);
    }
  }
  const field = useRef<HTMLInputElement>(null);
  const search = useDebouncedCallback((text: string) => {
    const q = text.trim();
    setSent(q);
    onChange({ q });
  }, TYPING_PAUSE_MS);

  useEffect(() => {
    const focusSearch = (event: KeyboardEvent) => {
      if (event.key !== "/" || event.ctrlKey || event.metaKey || isTyping(event.target)) return;
      event.preventDefault();
      field.current?.focus();
    };
    window.addEventListener("keydown", focusSearch);
    return () => window.removeEventListener("keydown", focusSearch);
  }, []);

  const choices = Object.keys(STATUS_GROUPS).map((group) => ({ value: group, label: label(group) }));
  const choose = (group: string) => {
    if (isStatusGroup(group)) onChange({ group });
  };
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
      <SegmentedControl
        visibleFrom="sm"
        aria-label="Status"
        size="sm"
        value={state.group}
        onChange={choose}
        data={choices}
      />
      <NativeSelect
        hiddenFrom="sm"
        aria-label="Status"
        value={state.group}
        onChange={(event) => choose(event.currentTarget.value)}
        data={choices}
      />
      {teams.length > 1 ? (
        <NativeSelect
          aria-label="Team"
          value={state.team}
          onChange={(event) => onChange({ team: event.currentTarget.value, project: "" })}
          data={[
            { value: "", label: "All teams" },
            ...teams.map((team) => ({ value: team.name, label: team.name })),
          ]}
        />
      ) : null}
      <MoreFilters state={state} teams={teams} onChange={onChange} />
    </search>
  );
}
