import type { AdmissionSettings, NodeChange, QuotaNode, SimulationWish } from "@/api/types";

/** A number as it is typed; empty where there is no limit. */
export type Typed = number | string;

export interface GrantRow {
  node: string;
  path: string;
  accelerator: string;
  nominal: Typed;
  borrow_limit: Typed;
  lend_limit: Typed;
}

export const PARTS = [
  { name: "nominal", label: "Own slots" },
  { name: "borrow_limit", label: "Borrow limit" },
  { name: "lend_limit", label: "Lend limit" },
] as const;

export const SWITCHES = [
  { name: "fair_share", label: "Fair share" },
  { name: "backfill", label: "Backfill" },
  { name: "preempt", label: "Reclaim" },
] as const;
export type Switches = Record<(typeof SWITCHES)[number]["name"], boolean>;

export interface Workload {
  kind: "history" | "generate";
  days: Typed;
  jobs_per_day: Typed;
  largest: Typed;
}

export const INITIAL_WORKLOAD: Workload = { kind: "history", days: 30, jobs_per_day: 100, largest: 8 };

const typed = (value: number | null | undefined): Typed => value ?? "";
const toNumber = (value: Typed): number | null => (value === "" ? null : Number(value));

/** A row for each node and each accelerator of the tree, whether or not there is a grant. */
export function rowsOf(nodes: QuotaNode[]): GrantRow[] {
  const accelerators = [...new Set(nodes.flatMap((node) => node.shares.map((share) => share.accelerator)))].sort();
  return nodes.flatMap((node) =>
    accelerators.map((accelerator) => {
      const grant = node.grants.find((each) => each.accelerator === accelerator);
      return {
        node: node.id,
        path: node.path,
        accelerator,
        nominal: grant ? grant.nominal : "",
        borrow_limit: typed(grant?.borrow_limit),
        lend_limit: typed(grant?.lend_limit),
      };
    }),
  );
}

const same = (first: GrantRow, second: GrantRow) => PARTS.every(({ name }) => toNumber(first[name]) === toNumber(second[name]));

/** Only changed rows. A row with all fields empty removes the grant. */
export function changesOf(before: GrantRow[], after: GrantRow[]): NodeChange[] {
  const edited = after.filter((row, at) => !same(row, before[at] ?? row));
  return [...new Set(edited.map((row) => row.node))].map((node) => ({
    node,
    grants: Object.fromEntries(
      edited
        .filter((row) => row.node === node)
        .map((row) => {
          const empty = PARTS.every(({ name }) => row[name] === "");
          const grant = {
            nominal: toNumber(row.nominal) ?? 0,
            borrow_limit: toNumber(row.borrow_limit),
            lend_limit: toNumber(row.lend_limit),
          };
          return [row.accelerator, empty ? null : grant];
        }),
    ),
  }));
}

export function toRequest(workload: Workload, changes: NodeChange[], switches: Switches, now: AdmissionSettings): SimulationWish {
  const days = toNumber(workload.days) ?? 1;
  const other = SWITCHES.filter(({ name }) => switches[name] !== now[name]);
  return {
    ...(workload.kind === "history"
      ? { history_days: days }
      : { generate: { days, jobs_per_day: toNumber(workload.jobs_per_day) ?? 1, largest: toNumber(workload.largest) ?? 1 } }),
    ...(changes.length > 0 ? { changes } : {}),
    ...(other.length > 0 ? { settings: Object.fromEntries(other.map(({ name }) => [name, switches[name]])) } : {}),
  };
}
