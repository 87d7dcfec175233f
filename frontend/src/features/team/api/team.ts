import { queryOptions } from "@tanstack/react-query";

import { request } from "@/api/client";
import { teamKeys, teamPath } from "@/api/teams";
import type {
  Invitation,
  MadeInvitation,
  Member,
  NewSecret,
  NewToken,
  Offer,
  Page,
  Project,
  Role,
  Secret,
  ServiceAccount,
  SigningKey,
  TeamOfPlatform,
} from "@/api/types";

function listOf<T>(teamId: string, part: string) {
  return queryOptions({
    queryKey: teamKeys.of(teamId, part),
    queryFn: ({ signal }) => request<Page<T>>(teamPath(teamId, part), { signal }),
  });
}

export const invitationsQuery = (teamId: string) => listOf<Invitation>(teamId, "invitations");
export const serviceAccountsQuery = (teamId: string) => listOf<ServiceAccount>(teamId, "service-accounts");
export const secretsQuery = (teamId: string) => listOf<Secret>(teamId, "secrets");
export const signingKeysQuery = (teamId: string) => listOf<SigningKey>(teamId, "signing-keys");

/** Every team of the platform, for its administrators. */
export const allTeamsQuery = () =>
  queryOptions({
    queryKey: [...teamKeys.all, "every"],
    queryFn: ({ signal }) => request<Page<TeamOfPlatform>>("/teams", { signal }),
  });

export const teamQuery = (teamId: string) =>
  queryOptions({
    queryKey: teamKeys.of(teamId, "settings"),
    queryFn: ({ signal }) => request<TeamOfPlatform>(`/teams/${encodeURIComponent(teamId)}`, { signal }),
  });

/** Sets whether training is refused on data without a data report, or with critical findings in it. */
export function setDataPolicy(teamId: string, required: boolean): Promise<TeamOfPlatform> {
  return request(teamPath(teamId, "data-policy"), { method: "PUT", json: { requires_data_report: required } });
}

export function createTeam(name: string): Promise<TeamOfPlatform> {
  return request("/teams", { method: "POST", json: { name } });
}

export function createProject(team: string, name: string): Promise<Project> {
  return request("/projects", { method: "POST", json: { team, name } });
}

export function setRole(teamId: string, userId: string, role: Role): Promise<Member> {
  return request(teamPath(teamId, `members/${encodeURIComponent(userId)}`), { method: "PATCH", json: { role } });
}

export function removeMember(teamId: string, userId: string): Promise<void> {
  return request(teamPath(teamId, `members/${encodeURIComponent(userId)}`), { method: "DELETE" });
}

export function invite(teamId: string, role: Role, note: string): Promise<MadeInvitation> {
  return request(teamPath(teamId, "invitations"), { method: "POST", json: { role, note } });
}

/** Offers membership to a user, who accepts or declines it. */
export function offerMembership(teamId: string, username: string, role: Role): Promise<Invitation> {
  return request(teamPath(teamId, "members"), { method: "POST", json: { username, role } });
}

export function revokeMembersTokens(teamId: string, userId: string): Promise<{ revoked: number }> {
  return request(teamPath(teamId, `members/${encodeURIComponent(userId)}/tokens:revoke-all`), { method: "POST" });
}

/** What is offered to the signed-in user by name. */
export const offersQuery = () =>
  queryOptions({
    queryKey: [...teamKeys.all, "offers"],
    queryFn: ({ signal }) => request<Page<Offer>>("/invitations", { signal }),
  });

export function answerOffer(id: string, answer: "accept" | "decline"): Promise<unknown> {
  return request(`/invitations/${encodeURIComponent(id)}:${answer}`, { method: "POST" });
}

export function revokeInvitation(id: string): Promise<void> {
  return request(`/invitations/${encodeURIComponent(id)}`, { method: "DELETE" });
}

export function createServiceAccount(teamId: string, name: string, role: Role): Promise<ServiceAccount> {
  return request(teamPath(teamId, "service-accounts"), { method: "POST", json: { name, role } });
}

export function issueServiceToken(accountId: string, name: string): Promise<NewToken> {
  return request(`/service-accounts/${encodeURIComponent(accountId)}/tokens`, { method: "POST", json: { name } });
}

export function retireServiceAccount(id: string): Promise<void> {
  return request(`/service-accounts/${encodeURIComponent(id)}`, { method: "DELETE" });
}

/** Sets a new secret or replaces one; no answer holds a value. */
export function putSecret(teamId: string, secret: NewSecret): Promise<Secret> {
  return request(teamPath(teamId, "secrets"), { method: "POST", json: secret });
}

/** Replaces the servers that a secret may be sent to; its value stays. */
export function setDestinations(id: string, destinations: string[]): Promise<Secret> {
  return request(`/secrets/${encodeURIComponent(id)}`, { method: "PATCH", json: { destinations } });
}

export function deleteSecret(id: string): Promise<void> {
  return request(`/secrets/${encodeURIComponent(id)}`, { method: "DELETE" });
}

/** Creates a key, which signs from now on; signatures by the keys before it stay valid. */
export function rotateSigningKey(teamId: string): Promise<SigningKey> {
  return request(teamPath(teamId, "signing-keys:rotate"), { method: "POST" });
}

/** All signatures by the key are refused from now on. */
export function revokeSigningKey(id: string, reason: string): Promise<SigningKey> {
  return request(`/signing-keys/${encodeURIComponent(id)}:revoke`, { method: "POST", json: { reason } });
}

export function changeProject(id: string, changes: { archived?: boolean; description?: string }): Promise<Project> {
  return request(`/projects/${encodeURIComponent(id)}`, { method: "PATCH", json: changes });
}
