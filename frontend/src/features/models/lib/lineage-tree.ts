import type { Lineage, LineageEdge, LineageNode } from "@/api/types";

export type Side = "up" | "down";

/** A node below another one of the tree. `repeated`: it is in the tree already, with what is below it. */
export interface Branch {
  node: LineageNode;
  relation: string;
  reference: string;
  repeated: boolean;
  branches: Branch[];
}

const SOURCES: Record<LineageEdge["relation"], string> = {
  prepared_from: "tokenised from",
  trained_on: "trained on",
  prepares: "prepares",
  evaluated_on: "evaluated on",
  replayed_on: "replayed on",
  report_on: "report on",
  reports_on: "reports on",
  base: "started from",
  evaluates: "evaluates",
  replays: "replays",
  exports: "exports",
  forked_from: "forked from",
  made_by: "made by",
  version_of: "version of",
  alias_of: "alias of",
  download_of: "download of",
};

const PRODUCTS: Record<LineageEdge["relation"], string> = {
  prepared_from: "tokenised as",
  trained_on: "trained",
  prepares: "prepared by",
  evaluated_on: "evaluated with",
  replayed_on: "replayed with",
  report_on: "reported on in",
  reports_on: "reported on by",
  base: "base of",
  evaluates: "evaluated by",
  replays: "replayed by",
  exports: "exported by",
  forked_from: "forked as",
  made_by: "made",
  version_of: "registered as",
  alias_of: "named by",
  download_of: "downloaded by",
};

/** What the object of a lineage was made of (`up`), or what was made from it (`down`), each node expanded once. */
export function lineageTree(lineage: Lineage, side: Side): Branch[] {
  const nodes = new Map(lineage.nodes.map((node) => [node.id, node]));
  const seen = new Set([lineage.of]);
  const below = (id: string): Branch[] =>
    lineage.edges.flatMap((edge) => {
      const [near, far] = side === "up" ? [edge.target_id, edge.source_id] : [edge.source_id, edge.target_id];
      const node = nodes.get(far);
      if (near !== id || node === undefined) {
        return [];
      }
      const relation = (side === "up" ? SOURCES : PRODUCTS)[edge.relation];
      const repeated = seen.has(far);
      seen.add(far);
      return [{ node, relation, reference: edge.reference, repeated, branches: repeated ? [] : below(far) }];
    });
  return below(lineage.of);
}
