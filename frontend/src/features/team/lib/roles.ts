import type { Role } from "@/api/types";

export const ROLES: { value: Role; label: string }[] = [
  { value: "viewer", label: "viewer: looks and downloads" },
  { value: "member", label: "member: submits and stops jobs too" },
  { value: "admin", label: "admin: manages the team too" },
];

export function isRole(text: string): text is Role {
  return ROLES.some((role) => role.value === text);
}
