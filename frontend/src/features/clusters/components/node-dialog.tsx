import { Button, Group, Modal, Stack, Text, TextInput } from "@mantine/core";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";

import type { ClusterNode, NodeIncident } from "@/api/types";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { Notice } from "@/components/notice";
import { Pill } from "@/components/pill";
import { ProblemNotice } from "@/components/problem-notice";
import { TimeAgo } from "@/components/time-ago";
import type { NodeAct } from "@/features/clusters/api/clusters";
import { actOnNode, clusterKeys, incidentsQuery } from "@/features/clusters/api/clusters";
import { NodePreflights } from "@/features/clusters/components/node-preflights";
import { nodeCondition, scoreReasons, STANDINGS } from "@/features/clusters/lib/condition";
import { label } from "@/lib/status";
import { useNow } from "@/lib/use-now";

interface NodeDialogProps {
  clusterId: string;
  name: string;
  /** Undefined while the shown list does not contain it. */
  node: ClusterNode | undefined;
  drains: boolean;
  onClose: () => void;
}

const EFFECTS: Record<NodeAct, string> = {
  drain: "The cluster starts nothing new on it. Running jobs continue.",
  undrain: "The cluster may use it again.",
  quarantine: "The platform starts no new attempts on it until it is released. Running attempts continue.",
  release: "New attempts may use it again. Its incidents until now no longer count.",
};
const NEEDS_REASON = new Set<NodeAct>(["drain", "quarantine"]);

function actsOf(node: ClusterNode | undefined, drains: boolean): NodeAct[] {
  if (node && node.quarantined_at !== null) return ["release"];
  const acts: NodeAct[] = ["quarantine"];
  if (node && node.score.standing !== "good") acts.push("release");
  if (drains && node?.listed) acts.push(node.state === "drained" ? "undrain" : "drain");
  return acts;
}

/** A node with its incidents, and actions on it. */
export function NodeDialog({ clusterId, name, node, drains, onClose }: NodeDialogProps) {
  const client = useQueryClient();
  const [asked, setAsked] = useState<NodeAct | null>(null);
  const [reason, setReason] = useState("");
  const incidents = useQuery(incidentsQuery(clusterId, name));
  const act = useMutation({
    mutationFn: (chosen: NodeAct) => actOnNode(clusterId, name, chosen, reason),
    onSuccess: () => {
      setAsked(null);
      setReason("");
    },
    onSettled: () => client.invalidateQueries({ queryKey: clusterKeys.all }),
  });
  const shown = node ?? act.data;
  return (
    <Modal opened onClose={onClose} title={name} centered size="xl">
      <Stack>
        {shown ? <NodeFacts node={shown} /> : null}
        {act.data?.notice ? <Notice tone="waiting" title={act.data.notice} urgent /> : null}
        {act.error ? <ProblemNotice error={act.error} /> : null}
        {asked === null ? (
          <Group gap="sm">
            {actsOf(shown, drains).map((each) => (
              <Button key={each} variant="default" size="compact-md" onClick={() => setAsked(each)}>
                {label(each)}
              </Button>
            ))}
          </Group>
        ) : (
          <form
            onSubmit={(event) => {
              event.preventDefault();
              act.mutate(asked);
            }}
          >
            <Stack gap="sm">
              <Text size="sm">{EFFECTS[asked]}</Text>
              {NEEDS_REASON.has(asked) ? (
                <TextInput
                  label="Reason"
                  description="Shown to users who open this node"
                  value={reason}
                  onChange={(event) => setReason(event.currentTarget.value)}
                  required
                  maxLength={500}
                  data-autofocus
                />
              ) : null}
              <Group justify="flex-end">
                <Button variant="default" onClick={() => setAsked(null)}>
                  Back
                </Button>
                <Button type="submit" color="red" loading={act.isPending}>
                  {label(asked)} {name}
                </Button>
              </Group>
            </Stack>
          </form>
        )}
        <NodePreflights clusterId={clusterId} name={name} />
        {incidents.error ? <ProblemNotice error={incidents.error} /> : null}
        {incidents.data ? <Incidents incidents={incidents.data.items} /> : null}
      </Stack>
    </Modal>
  );
}

function NodeFacts({ node }: { node: ClusterNode }) {
  const condition = nodeCondition(node);
  const labels = Object.entries(node.labels)
    .map(([key, value]) => `${key}=${value}`)
    .join(", ");
  return (
    <Stack gap={4}>
      <Group gap="sm">
        <Pill tone={condition.tone}>{condition.text}</Pill>
        <Text size="sm">
          {node.slots_used} of {node.slots} {node.accelerator} used, {node.cpus} cores
        </Text>
      </Group>
      {node.quarantined_at === null ? null : (
        <Text size="sm">
          Requested by {node.quarantined_by}: {node.quarantine_reason}
        </Text>
      )}
      {node.reason ? <Text size="sm">Reason from the cluster: {node.reason}</Text> : null}
      {node.score.reasons.length > 0 ? (
        <Text size="sm">
          Score {node.score.value.toFixed(2)}, {STANDINGS[node.score.standing].text.toLowerCase()}: {scoreReasons(node)}
        </Text>
      ) : null}
      {labels ? (
        <Text size="xs" c="dimmed" className="mono" style={{ overflowWrap: "anywhere" }}>
          {labels}
        </Text>
      ) : null}
    </Stack>
  );
}

function Incidents({ incidents }: { incidents: NodeIncident[] }) {
  const now = useNow(true, 10_000);
  const columns: Column<NodeIncident>[] = [
    { name: "Time", cell: (incident) => <TimeAgo time={incident.time} now={now} /> },
    { name: "Event", cell: (incident) => label(incident.kind) },
    { name: "Reason", cell: (incident) => incident.detail || "–" },
    {
      name: "User or job",
      quiet: true,
      cell: (incident) => (
        <span className="mono" style={{ overflowWrap: "anywhere" }}>
          {incident.actor || incident.job_id || "–"}
        </span>
      ),
    },
  ];
  if (incidents.length === 0) {
    return (
      <Text size="sm" c="dimmed">
        No events for this node.
      </Text>
    );
  }
  return <DataTable label="Incidents" rows={incidents} columns={columns} rowKey={(incident) => incident.id} />;
}
