import type { Cluster, ClusterNode, Finding } from "@/api/types";
import type { Tone } from "@/lib/status";

interface Condition {
  text: string;
  tone: Tone;
}

/** Whether jobs can run on a cluster. */
export function clusterCondition(cluster: Pick<Cluster, "enabled" | "usable">): Condition {
  if (!cluster.enabled) return { text: "Disabled", tone: "muted" };
  if (cluster.usable === null) return { text: "Not checked", tone: "waiting" };
  return cluster.usable ? { text: "Usable", tone: "good" } : { text: "Not usable", tone: "bad" };
}

const NODE_STATES: Record<ClusterNode["state"], Condition> = {
  ready: { text: "Ready", tone: "good" },
  drained: { text: "Drained", tone: "waiting" },
  down: { text: "Down", tone: "bad" },
  unknown: { text: "Unknown", tone: "muted" },
};

export function nodeCondition(node: Pick<ClusterNode, "state" | "quarantined_at" | "listed">): Condition {
  if (node.quarantined_at !== null) return { text: "Quarantine", tone: "bad" };
  if (!node.listed) return { text: "Not listed", tone: "muted" };
  return NODE_STATES[node.state];
}

const LEVELS: Record<Finding["level"], Condition> = {
  ok: { text: "Passed", tone: "good" },
  warning: { text: "Warning", tone: "waiting" },
  error: { text: "Failed", tone: "bad" },
};

export function findingCondition(finding: Pick<Finding, "level">): Condition {
  return LEVELS[finding.level];
}

const WORST_FIRST = { error: 0, warning: 1, ok: 2 };

export function worstFirst(findings: Finding[]): Finding[] {
  return [...findings].sort((a, b) => WORST_FIRST[a.level] - WORST_FIRST[b.level]);
}

type Standing = ClusterNode["score"]["standing"];

/** What follows from the score of a node's incidents. */
export const STANDINGS: Record<Standing, Condition> = {
  good: { tone: "good", text: "Good" },
  probation: { tone: "waiting", text: "On probation" },
  avoided: { tone: "bad", text: "Avoided" },
};

/** The kinds of incidents that count against a node, the gravest first. */
export function scoreReasons(node: ClusterNode): string {
  return node.score.reasons
    .map(({ kind, jobs }) => `${kind.replaceAll("_", " ")} of ${jobs} ${jobs === 1 ? "job" : "jobs"}`)
    .join(", ");
}
