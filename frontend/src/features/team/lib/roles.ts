import type { Role } from "@/api/types";

export const ROLES: { value: Role; label: string }[] = [
  { value: "viewer", label: "viewer: view and download" },
  { value: "member", label: "member: also submit and stop jobs" },
  { value: "admin", label: "admin: also manage the team" },
];

export function isRole(text: string): text is Role {
  return ROLES.some((role) => role.value === text);
}
