import { useCallback } from "react";

import type { JobFilters } from "@/api/jobs";
import { columnOf, DEFAULT_COLUMNS } from "@/features/jobs/lib/columns";
import type { StatusGroup } from "@/lib/status";
import { isStatusGroup, STATUS_GROUPS } from "@/lib/status";
import { useSearchChanges } from "@/lib/use-search-changes";

export interface FilterState {
  group: StatusGroup;
  team: string;
  project: string;
  /** A username, or `@me`. */
  person: string;
  /** Each `key=value`. */
  labels: string[];
  q: string;
}

export interface TableState {
  columns: string[];
  /** As `GET /jobs` takes it. Empty for the newest first. */
  sort: string;
}

export const NO_FILTERS: FilterState = { group: "all", team: "", project: "", person: "", labels: [], q: "" };
const LABEL = "label.";

/** The address is the state: a filtered table can be bookmarked, shared and reached by the back button. */
export function useJobFilters(): {
  state: FilterState;
  table: TableState;
  filters: JobFilters;
  change: (part: Partial<FilterState & TableState>) => void;
} {
  const [search, changeSearch] = useSearchChanges();
  const named = search.get("status") ?? "all";
  const labels = [...search].filter(([name]) => name.startsWith(LABEL));
  const state: FilterState = {
    group: isStatusGroup(named) ? named : "all",
    team: search.get("team") ?? "",
    project: search.get("project") ?? "",
    person: search.get("by") ?? "",
    labels: labels.map(([name, value]) => `${name.slice(LABEL.length)}=${value}`),
    q: search.get("q") ?? "",
  };
  const chosen = search.get("columns")?.split(",").filter((id) => columnOf(id) !== undefined);
  const table = { columns: chosen ?? DEFAULT_COLUMNS, sort: search.get("sort") ?? "" };
  const change = useCallback(
    (part: Partial<FilterState & TableState>) => {
      changeSearch((after) => {
        const set = (name: string, value: string | undefined, resting: string) => {
          if (value === undefined) return;
          if (value === resting) after.delete(name);
          else after.set(name, value);
        };
        set("status", part.group, "all");
        set("team", part.team, "");
        set("project", part.project, "");
        set("by", part.person, "");
        set("q", part.q, "");
        set("sort", part.sort, "");
        set("columns", part.columns?.join(","), DEFAULT_COLUMNS.join(","));
        if (part.labels !== undefined) {
          for (const name of [...after.keys()]) if (name.startsWith(LABEL)) after.delete(name);
          for (const label of part.labels) {
            const [key = "", ...value] = label.split("=");
            after.set(LABEL + key, value.join("="));
          }
        }
      });
    },
    [changeSearch],
  );
  return {
    state,
    table,
    filters: {
      status: STATUS_GROUPS[state.group].join(","),
      team: state.team,
      project: state.project,
      created_by: state.person,
      q: state.q,
      sort: table.sort,
      ...Object.fromEntries(labels),
    },
    change,
  };
}
