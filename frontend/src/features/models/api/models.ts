import { queryOptions } from "@tanstack/react-query";

import { request } from "@/api/client";
import type {
  Comparison,
  Lineage,
  ModelAlias,
  ModelGrant,
  ModelVersion,
  Page,
  RegisteredModel,
  RegistryPreview,
} from "@/api/types";

export const modelsKey = ["models"] as const;

const SHOWN = 200;

/** What a spec names a model by: of a shared one, with the team that owns it. */
export function referenceOf(model: RegisteredModel): string {
  return model.is_shared ? `${model.team.name}/${model.name}` : model.name;
}

const model = (id: string) => `/models/${encodeURIComponent(id)}`;
const grant = (id: string, team: string) => `${model(id)}/grants/${encodeURIComponent(team)}`;
const alias = (id: string, name: string) => `${model(id)}/aliases/${encodeURIComponent(name)}`;

export function modelsQuery() {
  return queryOptions({
    queryKey: modelsKey,
    queryFn: ({ signal }) => request<Page<RegisteredModel>>("/models", { query: { limit: SHOWN }, signal }),
  });
}

export function modelQuery(id: string) {
  return queryOptions({
    queryKey: [...modelsKey, id],
    queryFn: ({ signal }) => request<RegisteredModel>(model(id), { signal }),
  });
}

/** The newest versions of a model. */
export function versionsQuery(id: string) {
  return queryOptions({
    queryKey: [...modelsKey, id, "versions"],
    queryFn: ({ signal }) =>
      request<Page<ModelVersion>>(`${model(id)}/versions`, { query: { limit: SHOWN }, signal }),
  });
}

/** The evaluations of the newest versions, compared with that in production, if there is one. */
export function evaluationsQuery(id: string) {
  return queryOptions({
    queryKey: [...modelsKey, id, "evaluations"],
    queryFn: ({ signal }) => request<Comparison>(`${model(id)}/evaluations`, { signal }),
  });
}

/** What an object was made of, and what was made from it. */
export function lineageQuery(of: string) {
  return queryOptions({
    queryKey: [...modelsKey, "lineage", of],
    queryFn: ({ signal }) => request<Lineage>("/lineage", { query: { of }, signal }),
  });
}

/** Points an alias to a version, with requirements only if the version's results meet all of them. */
export function pointAlias(id: string, name: string, version: number, require: string[] = []): Promise<ModelAlias> {
  const json = require.length > 0 ? { version, require } : { version };
  return request<ModelAlias>(alias(id, name), { method: "PUT", json });
}

export function describe(id: string, changes: { card: string; tags: string[] }): Promise<RegisteredModel> {
  return request<RegisteredModel>(model(id), { method: "PATCH", json: changes });
}

/** What depends on a version. */
export function deletionQuery(id: string, number: number) {
  return queryOptions({
    queryKey: [...modelsKey, id, "deletion", number],
    queryFn: ({ signal }) => request<RegistryPreview>(`${model(id)}/versions/${number}/deletion`, { signal }),
    staleTime: 0,
  });
}

export function deleteVersion(id: string, number: number): Promise<void> {
  return request(`${model(id)}/versions/${number}`, { method: "DELETE" });
}

/** The other teams that may read a model. */
export function grantsQuery(id: string) {
  return queryOptions({
    queryKey: [...modelsKey, id, "grants"],
    queryFn: ({ signal }) => request<Page<ModelGrant>>(`${model(id)}/grants`, { signal }),
  });
}

export function share(id: string, team: string): Promise<ModelGrant> {
  return request<ModelGrant>(grant(id, team), { method: "PUT" });
}

export function stopSharing(id: string, team: string): Promise<void> {
  return request(grant(id, team), { method: "DELETE" });
}
