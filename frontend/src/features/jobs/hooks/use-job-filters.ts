import { useCallback } from "react";
import { useSearchParams } from "react-router";

import type { JobFilters } from "@/api/jobs";
import type { StatusGroup } from "@/lib/status";
import { isStatusGroup, STATUS_GROUPS } from "@/lib/status";

export interface FilterState {
  group: StatusGroup;
  team: string;
  q: string;
}

/** The address is the state: a filtered table can be bookmarked, shared and reached by the back button. */
export function useJobFilters(): {
  state: FilterState;
  filters: JobFilters;
  change: (part: Partial<FilterState>) => void;
} {
  const [search, setSearch] = useSearchParams();
  const named = search.get("status") ?? "all";
  const state: FilterState = {
    group: isStatusGroup(named) ? named : "all",
    team: search.get("team") ?? "",
    q: search.get("q") ?? "",
  };
  const change = useCallback(
    (part: Partial<FilterState>) => {
      setSearch(
        (before) => {
          const after = new URLSearchParams(before);
          const set = (name: string, value: string | undefined, resting: string) => {
            if (value === undefined) return;
            if (value === resting) after.delete(name);
            else after.set(name, value);
          };
          set("status", part.group, "all");
          set("team", part.team, "");
          set("q", part.q, "");
          return after;
        },
        { replace: true },
      );
    },
    [setSearch],
  );
  return {
    state,
    filters: { status: STATUS_GROUPS[state.group].join(","), team: state.team, q: state.q },
    change,
  };
}
