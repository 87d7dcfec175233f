import { Button, Group, Modal, NumberInput, Stack, Text, TextInput } from "@mantine/core";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import type { SubmitEvent } from "react";
import { useState } from "react";

import { errorAt, Problem } from "@/api/problem";
import type { FullCluster, Pool, PoolChange, ProposedPool } from "@/api/types";
import { Confirm } from "@/components/confirm";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { EmptyState } from "@/components/empty-state";
import { Notice } from "@/components/notice";
import { Panel } from "@/components/panel";
import { ProblemNotice } from "@/components/problem-notice";
import { clusterKeys, putPool, removePool } from "@/features/clusters/api/clusters";
import { fieldsOf } from "@/lib/form";
import { bytes, priceText } from "@/lib/format";

const GIB = 2 ** 30;
type Draft = PoolChange & { name: string };

const NEW: Draft = {
  name: "",
  accelerator: "cpu",
  nodes: 1,
  spare_nodes: 0,
  slots_per_node: 1,
  memory_bytes: GIB,
  accelerator_memory_bytes: null,
};

function draftOf(pool: Pool): Draft {
  const { name, accelerator, nodes, spare_nodes, slots_per_node, memory_bytes, accelerator_memory_bytes, currency } =
    pool;
  const price_per_slot_hour = String(pool.price_per_slot_hour);
  return {
    name,
    accelerator,
    nodes,
    spare_nodes,
    slots_per_node,
    memory_bytes,
    accelerator_memory_bytes,
    currency,
    price_per_slot_hour,
  };
}

function nodesOf(pool: Pool): string {
  return pool.spare_nodes > 0 ? `${pool.nodes}, ${pool.spare_nodes} spare` : String(pool.nodes);
}

function proposal(pool: ProposedPool): string {
  return `${pool.name}: ${pool.nodes} nodes of ${pool.slots_per_node} ${pool.accelerator}, ${bytes(pool.memory_bytes)} each`;
}

function gibibytes(size: number | null | undefined): string {
  return size ? String(Number((size / GIB).toFixed(1))) : "";
}

/** Bytes of a field in GiB; `before` if it still shows that size, which it rounds. */
function sizeOf(text: string, before: number | null | undefined): number | null {
  if (text === gibibytes(before)) return before ?? null;
  return text === "" ? null : Math.round(Number(text) * GIB);
}

/** What jobs are placed in; made by hand, or as the nodes propose. */
export function PoolsPanel({ cluster }: { cluster: FullCluster }) {
  const client = useQueryClient();
  const [edited, setEdited] = useState<Draft | null>(null);
  const [doomed, setDoomed] = useState<Pool | null>(null);
  const refresh = () => client.invalidateQueries({ queryKey: clusterKeys.all });
  const put = useMutation({
    mutationFn: ({ name, ...facts }: Draft) => putPool(cluster.id, name, facts),
    onSuccess: () => setEdited(null),
    onSettled: refresh,
  });
  const remove = useMutation({
    mutationFn: (pool: Pool) => removePool(cluster.id, pool.name),
    onSuccess: () => setDoomed(null),
    onSettled: refresh,
  });
  const operates = cluster.setup !== null;
  const edit = (draft: Draft) => {
    put.reset();
    setEdited(draft);
  };
  const columns: Column<Pool>[] = [
    { name: "Pool", cell: (pool) => pool.name },
    { name: "Accelerator", cell: (pool) => <span className="mono">{pool.accelerator}</span> },
    { name: "Nodes", end: true, cell: (pool) => nodesOf(pool) },
    { name: "Slots used", end: true, cell: (pool) => `${pool.slots_used} of ${pool.slots}` },
    { name: "Memory per node", end: true, quiet: true, cell: (pool) => bytes(pool.memory_bytes) },
    {
      name: "Memory per accelerator",
      end: true,
      quiet: true,
      cell: (pool) => (pool.accelerator_memory_bytes === null ? "–" : bytes(pool.accelerator_memory_bytes)),
    },
    {
      name: "Price per slot-hour",
      end: true,
      quiet: true,
      cell: (pool) => priceText(pool.price_per_slot_hour, pool.currency),
    },
    ...(operates
      ? [
          {
            name: "(Actions)",
            end: true,
            cell: (pool: Pool) => (
              <Group gap={4} justify="flex-end" wrap="nowrap">
                <Button
                  size="compact-sm"
                  variant="subtle"
                  aria-label={`Change pool ${pool.name}`}
                  onClick={() => edit(draftOf(pool))}
                >
                  Change
                </Button>
                <Button
                  size="compact-sm"
                  variant="subtle"
                  color="red"
                  aria-label={`Remove pool ${pool.name}`}
                  onClick={() => {
                    remove.reset();
                    setDoomed(pool);
                  }}
                >
                  Remove
                </Button>
              </Group>
            ),
          },
        ]
      : []),
  ];
  const tools = operates ? (
    <Button size="compact-sm" variant="default" onClick={() => edit(NEW)}>
      New pool
    </Button>
  ) : null;
  return (
    <Panel title="Pools" tools={tools} flush>
      {cluster.setup?.proposed_pools.map((pool) => (
        <Notice key={pool.name} tone="waiting" title="The nodes suggest a pool">
          <p>{proposal(pool)}</p>
          <Group mt={4}>
            <Button size="compact-sm" variant="default" onClick={() => edit({ ...pool })}>
              Make pool {pool.name}
            </Button>
          </Group>
        </Notice>
      ))}
      {cluster.pools.length > 0 ? (
        <DataTable label="Pools" rows={cluster.pools} columns={columns} rowKey={(pool) => pool.name} />
      ) : (
        <EmptyState title="No pools yet">Jobs run in pools: without one, none runs here.</EmptyState>
      )}
      {edited ? (
        <PoolDialog
          draft={edited}
          known={cluster.pools.some((pool) => pool.name === edited.name)}
          busy={put.isPending}
          error={put.error}
          onSave={put.mutate}
          onClose={() => setEdited(null)}
        />
      ) : null}
      <Confirm
        opened={doomed !== null}
        title={`Remove pool ${doomed?.name ?? ""}?`}
        yes="Remove it"
        no="Keep it"
        busy={remove.isPending}
        error={remove.error}
        onYes={() => {
          if (doomed) remove.mutate(doomed);
        }}
        onNo={() => setDoomed(null)}
      >
        <Text size="sm">Only a pool that never had a job can be removed. One with 0 nodes admits nothing.</Text>
      </Confirm>
    </Panel>
  );
}

interface PoolDialogProps {
  draft: Draft;
  known: boolean;
  busy: boolean;
  error: unknown;
  onSave: (draft: Draft) => void;
  onClose: () => void;
}

function PoolDialog({ draft, known, busy, error, onSave, onClose }: PoolDialogProps) {
  const save = (event: SubmitEvent<HTMLFormElement>) => {
    const field = fieldsOf(event);
    onSave({
      name: known ? draft.name : field("name"),
      accelerator: field("accelerator"),
      nodes: Number(field("nodes")),
      spare_nodes: Number(field("spare_nodes")),
      slots_per_node: Number(field("slots_per_node")),
      memory_bytes: sizeOf(field("memory"), draft.memory_bytes) ?? 0,
      accelerator_memory_bytes: sizeOf(field("accelerator_memory"), draft.accelerator_memory_bytes),
      price_per_slot_hour: field("price") || "0",
      currency: field("currency") || "USD",
    });
  };
  const price = draft.price_per_slot_hour ?? "0";
  return (
    <Modal opened onClose={onClose} title={known ? `Pool ${draft.name}` : "New pool"} centered>
      <form onSubmit={save}>
        <Stack>
          {known ? null : (
            <TextInput label="Name" name="name" defaultValue={draft.name} required error={errorAt(error, "/name")} />
          )}
          <TextInput
            label="Accelerator"
            name="accelerator"
            description="As specs ask for it; cpu where slots are processor cores"
            defaultValue={draft.accelerator ?? "cpu"}
            required
            error={errorAt(error, "/accelerator")}
          />
          <NumberInput label="Nodes" name="nodes" min={0} defaultValue={draft.nodes ?? 1} error={errorAt(error, "/nodes")} />
          <NumberInput
            label="Spare nodes"
            name="spare_nodes"
            description="How many of the nodes stay free of jobs, for runs that lose a node"
            min={0}
            defaultValue={draft.spare_nodes ?? 0}
            error={errorAt(error, "/spare_nodes")}
          />
          <NumberInput
            label="Slots per node"
            name="slots_per_node"
            min={1}
            defaultValue={draft.slots_per_node ?? 1}
            error={errorAt(error, "/slots_per_node")}
          />
          <NumberInput
            label="Host memory per node, GiB"
            name="memory"
            min={0}
            decimalScale={1}
            defaultValue={gibibytes(draft.memory_bytes)}
            error={errorAt(error, "/memory_bytes")}
          />
          <NumberInput
            label="Memory per accelerator, GiB"
            name="accelerator_memory"
            description="Empty: jobs are not checked against it"
            min={0}
            decimalScale={1}
            defaultValue={gibibytes(draft.accelerator_memory_bytes)}
            error={errorAt(error, "/accelerator_memory_bytes")}
          />
          <Group grow>
            <NumberInput label="Price per slot-hour" name="price" min={0} defaultValue={Number(price)} />
            <TextInput label="Currency" name="currency" maxLength={3} defaultValue={draft.currency ?? "USD"} />
          </Group>
          {error && !(error instanceof Problem && error.fields.length > 0) ? <ProblemNotice error={error} /> : null}
          <Group justify="flex-end">
            <Button variant="default" onClick={onClose}>
              Back
            </Button>
            <Button type="submit" loading={busy}>
              Save
            </Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  );
}
