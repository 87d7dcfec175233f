import type { NodeChange, QuotaNode } from "@/api/types";
import type { Unit } from "@/lib/units";
import { DURATION, SIZE } from "@/lib/units";

const ALL_LIMITS = [
  { name: "max_running_jobs", label: "Running jobs" },
  { name: "max_queued_jobs", label: "Waiting jobs" },
  { name: "max_slots", label: "Total slots" },
  { name: "max_slots_per_job", label: "Slots per job" },
  { name: "max_run_seconds", label: "Longest run", unit: DURATION },
  { name: "max_storage_bytes", label: "Stored data", unit: SIZE },
  { name: "idle_warning_seconds", label: "Idle warning after", unit: DURATION },
  { name: "idle_pause_seconds", label: "Idle pause after", unit: DURATION },
] as const satisfies { name: string; label: string; unit?: Unit }[];

export type LimitName = (typeof ALL_LIMITS)[number]["name"];
export const LIMITS: readonly { name: LimitName; label: string; unit?: Unit }[] = ALL_LIMITS;

/** A number as it is typed; empty where there is no limit. */
export type Typed = number | string;

export interface GrantDraft {
  accelerator: string;
  nominal: Typed;
  borrow_limit: Typed;
  lend_limit: Typed;
}

export interface NodeDraft {
  /** Null: a new group. */
  node: QuotaNode | null;
  name: string;
  parent: string | null;
  weight: Typed;
  limits: Record<LimitName, Typed>;
  grants: GrantDraft[];
}

const typed = (value: number | null): Typed => value ?? "";

function limitsOf(node: QuotaNode | null): Record<LimitName, Typed> {
  return Object.fromEntries(LIMITS.map(({ name }) => [name, typed(node?.[name] ?? null)])) as Record<LimitName, Typed>;
}

export function draftOf(node: QuotaNode): NodeDraft {
  return {
    node,
    name: node.name,
    parent: node.parent,
    weight: node.weight,
    limits: limitsOf(node),
    grants: node.grants.map((grant) => ({
      accelerator: grant.accelerator,
      nominal: grant.nominal,
      borrow_limit: typed(grant.borrow_limit),
      lend_limit: typed(grant.lend_limit),
    })),
  };
}

export function newGroup(parent: string): NodeDraft {
  return { node: null, name: "", parent, weight: 1, limits: limitsOf(null), grants: [] };
}

export const NEW_GRANT: GrantDraft = { accelerator: "", nominal: 0, borrow_limit: "", lend_limit: "" };

export const toNumber = (value: Typed): number | null => (value === "" ? null : Number(value));

/** The change that applies the draft to the node: every field of the form, and null for removed grants. */
export function changeOf(draft: NodeDraft): NodeChange {
  const { node } = draft;
  const gone = node?.grants.filter((grant) => !draft.grants.some((each) => each.accelerator === grant.accelerator)) ?? [];
  const grants = Object.fromEntries([
    ...gone.map((grant) => [grant.accelerator, null] as const),
    ...draft.grants.map(
      (grant) =>
        [
          grant.accelerator.trim(),
          {
            nominal: toNumber(grant.nominal) ?? 0,
            borrow_limit: toNumber(grant.borrow_limit),
            lend_limit: toNumber(grant.lend_limit),
          },
        ] as const,
    ),
  ]);
  const limits = Object.fromEntries(LIMITS.map(({ name }) => [name, toNumber(draft.limits[name])]));
  const values = { weight: toNumber(draft.weight) ?? 1, ...limits, grants } as Partial<NodeChange>;
  if (node === null) {
    const place = draft.parent === null ? {} : { parent: draft.parent };
    return { ...values, ...place, node: draft.name.trim(), action: "create" };
  }
  const change: NodeChange = { ...values, node: node.id };
  if (draft.parent !== null && draft.parent !== node.parent) change.parent = draft.parent;
  if (node.kind === "group" && draft.name.trim() !== node.name) change.name = draft.name.trim();
  return change;
}

/** Where a node may be moved: groups and the top, and nothing that is below itself. */
export function placesFor(node: QuotaNode | null, nodes: QuotaNode[]): QuotaNode[] {
  const parents = new Map(nodes.map((each) => [each.id, each.parent]));
  const isBelow = (each: QuotaNode) => {
    for (let at: string | null = each.id; at !== null; at = parents.get(at) ?? null) if (at === node?.id) return true;
    return false;
  };
  return nodes.filter((each) => each.kind !== "team" && !isBelow(each));
}
