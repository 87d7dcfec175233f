import { queryOptions } from "@tanstack/react-query";

import { address, request, send } from "@/api/client";
import type {
  Budget,
  BudgetChange,
  BudgetStatement,
  Costs,
  GoodputStatement,
  NewBudget,
  NewPriceSeries,
  Page,
  PoolPrice,
  PoolPriceChange,
  PriceSeries,
  Quotas,
  UsageReport,
} from "@/api/types";

const POLL_MS = 10_000;

export const budgetKeys = {
  all: ["budgets"] as const,
  list: (all: boolean) => ["budgets", "list", all] as const,
  one: (id: string) => ["budgets", "one", id] as const,
  statement: (id: string) => ["budgets", "statement", id] as const,
  costs: ["costs"] as const,
  goodput: (filters: GoodputFilters) => ["costs", "goodput", filters] as const,
  usageReport: (month: string) => ["costs", "usage-report", month] as const,
  prices: ["prices"] as const,
  series: ["prices", "series"] as const,
};

const one = (id: string) => `/budgets/${encodeURIComponent(id)}`;

export function budgetsQuery(all: boolean) {
  return queryOptions({
    queryKey: budgetKeys.list(all),
    queryFn: ({ signal }) =>
      request<Page<Budget>>("/budgets", { query: { active: all ? "all" : "true" }, signal }),
    refetchInterval: POLL_MS,
  });
}

/** `tag` is what a change says it is based on. */
export interface ReadBudget {
  budget: Budget;
  tag: string;
}

async function readBudget(response: Response): Promise<ReadBudget> {
  return { budget: (await response.json()) as Budget, tag: response.headers.get("ETag") ?? "" };
}

export function budgetQuery(id: string) {
  return queryOptions({
    queryKey: budgetKeys.one(id),
    queryFn: async ({ signal }) => readBudget(await send(one(id), { signal })),
    refetchInterval: POLL_MS,
  });
}

export function statementQuery(id: string) {
  return queryOptions({
    queryKey: budgetKeys.statement(id),
    queryFn: ({ signal }) => request<BudgetStatement>(`${one(id)}/statement`, { signal }),
    refetchInterval: POLL_MS,
  });
}

export function statementAddress(id: string): string {
  return address(`${one(id)}/statement:export`);
}

/** Where budgets can be: the nodes of the quota tree. */
export function nodesQuery() {
  return queryOptions({
    queryKey: ["budgets", "nodes"],
    queryFn: ({ signal }) => request<Quotas>("/quotas", { signal }),
  });
}

export function createBudget(budget: NewBudget): Promise<Budget> {
  return request<Budget>("/budgets", { method: "POST", json: budget });
}

export function changeBudget(id: string, tag: string, change: BudgetChange): Promise<Budget> {
  return request<Budget>(one(id), { method: "PATCH", json: change, headers: { "If-Match": tag } });
}

export interface CostFilters {
  after: string;
  before: string;
  by: string;
}

export function costsQuery(filters: CostFilters) {
  return queryOptions({
    queryKey: [...budgetKeys.costs, filters],
    queryFn: ({ signal }) => request<Costs>("/costs", { query: { ...filters }, signal }),
  });
}

export interface GoodputFilters {
  after: string;
  before: string;
  team?: string;
}

/** What the slots of a team were held for; without one, of all teams that the caller sees the costs of. */
export function goodputStatementQuery(filters: GoodputFilters) {
  return queryOptions({
    queryKey: budgetKeys.goodput(filters),
    queryFn: ({ signal }) => request<GoodputStatement>("/goodput", { query: { ...filters }, signal }),
  });
}

export function costsAddress(filters: CostFilters): string {
  return address("/costs:export", { ...filters });
}

export function usageReportQuery(month: string) {
  return queryOptions({
    queryKey: budgetKeys.usageReport(month),
    queryFn: ({ signal }) => request<UsageReport>("/usage-report", { query: { month }, signal }),
  });
}

export function usageReportAddress(month: string): string {
  return address("/usage-report:export", { month });
}

export function pricesQuery() {
  return queryOptions({
    queryKey: budgetKeys.prices,
    queryFn: ({ signal }) => request<Page<PoolPrice>>("/prices", { signal }),
    refetchInterval: POLL_MS,
  });
}

export function changePrice(poolId: string, change: PoolPriceChange): Promise<PoolPrice> {
  return request<PoolPrice>(`/prices/${encodeURIComponent(poolId)}`, { method: "PATCH", json: change });
}

export type SeriesOf = { kind: "price"; pool_id: string } | { kind: "carbon"; cluster_id: string };

export function seriesQuery() {
  return queryOptions({
    queryKey: budgetKeys.series,
    queryFn: ({ signal }) => request<Page<PriceSeries>>("/series", { signal }),
    // A worker may be fetching when the dialog asks for it: what it brings is shown when it is there.
    refetchInterval: POLL_MS,
  });
}

/** Create or replace a series; one with a provider is fetched immediately. */
export async function connectSeries(wanted: NewPriceSeries): Promise<PriceSeries> {
  const series = await request<PriceSeries>("/series", { method: "POST", json: wanted });
  if (!series.url) return series;
  return request<PriceSeries>(`/series/${encodeURIComponent(series.id)}:fetch`, { method: "POST" });
}

/** The series of a pool's prices or a cluster's carbon is made if there is none yet, then given these lines. */
export async function uploadSeries(of: SeriesOf, file: Blob): Promise<{ points: number }> {
  const series = await request<PriceSeries>("/series", { method: "POST", json: of });
  const body = new Blob([await file.text()], { type: "text/csv" });
  return request(`/series/${series.id}/points`, { method: "POST", body, headers: { "Content-Type": "text/csv" } });
}
