import type { TeamRef } from "@/api/types";

export function teamName(team: TeamRef | string | null): string {
  return team === null ? "" : typeof team === "string" ? team : team.name;
}
