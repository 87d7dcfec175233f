import type { Member, Project } from "@/api/types";

export function member(username: string): Member {
  return { user_id: `usr_${username}`, username, email: "", role: "member", is_service_account: false };
}

export function project(name: string): Project {
  return {
    id: `proj_${name}`,
    team: { id: "team_1", name: "red" },
    name,
    description: "",
    created_by: "ada",
    created_at: "2026-03-01T10:00:00Z",
    archived_at: null,
    job_count: 1,
    live_job_count: 0,
    last_submitted_at: null,
  };
}
