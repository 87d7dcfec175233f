import { Button, NativeSelect, Popover, Stack, TagsInput } from "@mantine/core";
import { useQueries } from "@tanstack/react-query";
import { useState } from "react";

import { membersQuery, projectsQuery } from "@/api/teams";
import type { Team } from "@/api/types";
import type { FilterState } from "@/features/jobs/hooks/use-job-filters";

const EVERYONE = { value: "", label: "Everyone" };
const ME = { value: "@me", label: "Me" };
const LABEL = /^[^=\s]+=.+$/;

interface MoreFiltersProps {
  state: FilterState;
  teams: Team[];
  onChange: (part: Partial<FilterState>) => void;
}

/** Filters by project, person and labels, behind a button that says how many of them apply. */
export function MoreFilters(props: MoreFiltersProps) {
  const { project, person, labels } = props.state;
  const active = (project ? 1 : 0) + (person ? 1 : 0) + labels.length;
  return (
    <Popover position="bottom-start" width={300} shadow="md" trapFocus>
      <Popover.Target>
        <Button variant={active > 0 ? "light" : "default"}>{active > 0 ? `Filters (${active})` : "Filters"}</Button>
      </Popover.Target>
      <Popover.Dropdown>
        <Fields {...props} />
      </Popover.Dropdown>
    </Popover>
  );
}

/** The choices are those of the chosen team, or of all of the caller's teams. */
function Fields({ state, teams, onChange }: MoreFiltersProps) {
  const [mistake, setMistake] = useState("");
  const asked = teams.filter((team) => state.team === "" || team.name === state.team);
  const projects = useQueries({ queries: asked.map((team) => projectsQuery(team.id, team.name)) });
  const members = useQueries({ queries: asked.map((team) => membersQuery(team.id)) });
  const projectNames = distinct(projects.flatMap(({ data }) => data?.items.map(({ name }) => name) ?? []), state.project);
  const people = distinct(
    members.flatMap(({ data }) => data?.items.map(({ username }) => username) ?? []),
    state.person === ME.value ? "" : state.person,
  );
  const setLabels = (labels: string[]) => {
    const wrong = labels.find((label) => !LABEL.test(label));
    setMistake(wrong === undefined ? "" : `${wrong}: write key=value`);
    if (wrong === undefined) onChange({ labels });
  };
  return (
    <Stack gap="sm">
      <NativeSelect
        label="Project"
        value={state.project}
        onChange={(event) => onChange({ project: event.currentTarget.value })}
        data={[{ value: "", label: "All projects" }, ...projectNames]}
      />
      <NativeSelect
        label="Submitted by"
        value={state.person}
        onChange={(event) => onChange({ person: event.currentTarget.value })}
        data={[EVERYONE, ME, ...people]}
      />
      <TagsInput
        label="Labels"
        placeholder="key=value, then Enter"
        value={state.labels}
        onChange={setLabels}
        error={mistake || null}
      />
    </Stack>
  );
}

/** In alphabetical order, with the one that the address names even if it is not among them. */
function distinct(names: string[], named: string): string[] {
  return [...new Set(named ? [...names, named] : names)].sort();
}
