import { queryOptions } from "@tanstack/react-query";

import { request } from "@/api/client";
import type { AdmissionSettings, Page, Quotas, Simulation, SimulationSummary, SimulationWish } from "@/api/types";

const LIST_MS = 5_000;
const RESULT_MS = 1_500;

export const simulationKeys = {
  list: ["simulations", "list"] as const,
  one: (id: string) => ["simulations", "one", id] as const,
};

export function simulationsQuery() {
  return queryOptions({
    queryKey: simulationKeys.list,
    queryFn: ({ signal }) => request<Page<SimulationSummary>>("/simulations", { query: { limit: 20 }, signal }),
    refetchInterval: LIST_MS,
  });
}

export const isOver = (state: SimulationSummary["state"]) => state === "done" || state === "failed";

/** Asked for again until a worker has carried it out. */
export function simulationQuery(id: string) {
  return queryOptions({
    queryKey: simulationKeys.one(id),
    queryFn: ({ signal }) => request<Simulation>(`/simulations/${id}`, { signal }),
    refetchInterval: (query) => (query.state.data && isOver(query.state.data.state) ? false : RESULT_MS),
  });
}

export function presentQuery() {
  return queryOptions({
    queryKey: ["simulations", "present"],
    queryFn: async ({ signal }) => ({
      tree: await request<Quotas>("/quotas", { signal }),
      settings: await request<AdmissionSettings>("/quotas/settings", { signal }),
    }),
    staleTime: Infinity,
  });
}

export function simulate(wish: SimulationWish): Promise<Simulation> {
  return request<Simulation>("/simulations", { method: "POST", json: wish });
}
