import { queryOptions } from "@tanstack/react-query";

import { request } from "@/api/client";
import type { Member, Page, Project } from "@/api/types";

export const teamKeys = {
  all: ["team"] as const,
  of: (teamId: string, part: string) => ["team", teamId, part] as const,
};

export function teamPath(teamId: string, part: string): string {
  return `/teams/${encodeURIComponent(teamId)}/${part}`;
}

export function membersQuery(teamId: string) {
  return queryOptions({
    queryKey: teamKeys.of(teamId, "members"),
    queryFn: ({ signal }) => request<Page<Member>>(teamPath(teamId, "members"), { signal }),
  });
}

export function projectsQuery(teamId: string, teamName: string) {
  return queryOptions({
    queryKey: teamKeys.of(teamId, "projects"),
    queryFn: ({ signal }) => request<Page<Project>>("/projects", { query: { team: teamName, limit: 200 }, signal }),
  });
}
