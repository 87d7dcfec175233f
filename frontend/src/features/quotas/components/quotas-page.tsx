import { Button, Group, Text } from "@mantine/core";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";

import type { QuotaNode, QuotaUsage } from "@/api/types";
import { Confirm } from "@/components/confirm";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { PlusIcon } from "@/components/icons";
import { Page } from "@/components/page";
import { Panel } from "@/components/panel";
import { ProblemNotice } from "@/components/problem-notice";
import { changeQuotas, quotaKeys, quotasQuery, usageQuery } from "@/features/quotas/api/quotas";
import { NodeDialog } from "@/features/quotas/components/node-dialog";
import { SettingsDialog } from "@/features/quotas/components/settings-dialog";
import { ShareBars, ShareKey } from "@/features/quotas/components/share-bar";
import { UsagePanel } from "@/features/quotas/components/usage-panel";
import type { NodeDraft } from "@/features/quotas/lib/draft";
import { draftOf, LIMITS, newGroup } from "@/features/quotas/lib/draft";
import { bytes } from "@/lib/format";

const DAYS = 30;

function limitText(node: QuotaNode): string {
  const limits = LIMITS.flatMap(({ name, label, unit }) => {
    const value = node[name];
    return value === null ? [] : [`${label.toLowerCase()}: ${unit ? unit.text(value) : value}`];
  });
  if (node.weight !== 1) limits.push(`weight: ${node.weight}`);
  return limits.join(", ");
}

function columnsFor(
  usage: QuotaUsage | undefined,
  onEdit: ((node: QuotaNode) => void) | null,
  onDelete: (node: QuotaNode) => void,
  parents: Set<string | null>,
): Column<QuotaNode>[] {
  const stored = new Map(usage?.nodes.map((each) => [each.id, each]));
  const columns: Column<QuotaNode>[] = [
    {
      name: "Node",
      cell: (node) => (
        <div style={{ paddingLeft: node.depth * 18 }}>
          <Text size="sm" fw={node.kind === "team" ? 400 : 600}>
            {node.name}
          </Text>
          <Text size="xs" c="dimmed">
            {node.kind}
          </Text>
        </div>
      ),
    },
    { name: "Slots", cell: (node) => <ShareBars shares={node.shares} /> },
    {
      name: "Jobs",
      cell: (node) => (
        <Text size="sm" className="numeric">
          {node.running_jobs} holding slots, {node.queued_jobs} queued
        </Text>
      ),
    },
    { name: "Limits", quiet: true, cell: (node) => limitText(node) || "none" },
    {
      name: "Stored",
      end: true,
      quiet: true,
      cell: (node) => {
        const unreferenced = stored.get(node.id)?.unreferenced_bytes ?? 0;
        return (
          <>
            {bytes(stored.get(node.id)?.storage_bytes)}
            {unreferenced > 0 && (
              <Text size="xs" c="dimmed">
                {bytes(unreferenced)} unreferenced
              </Text>
            )}
          </>
        );
      },
    },
  ];
  if (onEdit === null) return columns;
  return [
    ...columns,
    {
      name: "(Actions)",
      end: true,
      cell: (node) => (
        <Group gap={4} justify="flex-end" wrap="nowrap">
          {node.kind === "group" && !parents.has(node.id) ? (
            <Button
              size="compact-sm"
              variant="subtle"
              color="red"
              aria-label={`Delete ${node.path}`}
              onClick={() => onDelete(node)}
            >
              Delete
            </Button>
          ) : null}
          <Button size="compact-sm" variant="subtle" aria-label={`Change ${node.path}`} onClick={() => onEdit(node)}>
            Change
          </Button>
        </Group>
      ),
    },
  ];
}

/** The quota tree with current usage; users without a platform role see only the path above their teams. */
export function QuotasPage() {
  const client = useQueryClient();
  const quotas = useQuery(quotasQuery());
  const usage = useQuery(usageQuery(DAYS));
  const [edited, setEdited] = useState<NodeDraft | null>(null);
  const [doomed, setDoomed] = useState<QuotaNode | null>(null);
  const [settings, setSettings] = useState(false);
  const remove = useMutation({
    mutationFn: ({ node, version }: { node: QuotaNode; version: number }) =>
      changeQuotas([{ node: node.id, action: "delete" }], version),
    onSuccess: () => setDoomed(null),
    onSettled: () => client.invalidateQueries({ queryKey: quotaKeys.all }),
  });
  const tree = quotas.data?.value;
  const top = tree?.nodes.find((node) => node.kind === "organisation");
  const mayChange = tree?.may_change ?? false;
  const parents = new Set(tree?.nodes.map((node) => node.parent));
  const lead = tree?.whole
    ? "Slots and limits of the organisation, its groups and teams. Changes take effect immediately."
    : "Your teams and the groups above them. Other teams appear only in totals. Platform administrators change quotas.";
  return (
    <Page
      title="Quotas"
      lead={lead}
      actions={
        mayChange && top ? (
          <>
            <Button variant="default" onClick={() => setSettings(true)}>
              Admission settings
            </Button>
            <Button leftSection={<PlusIcon size={16} />} onClick={() => setEdited(newGroup(top.id))}>
              New group
            </Button>
          </>
        ) : null
      }
    >
      {quotas.error ? <ProblemNotice error={quotas.error} onRetry={() => void quotas.refetch()} /> : null}
      {tree ? (
        <Panel title="Tree" flush>
          <ShareKey />
          <DataTable
            label="Quotas"
            rows={tree.nodes}
            columns={columnsFor(usage.data, mayChange ? (node) => setEdited(draftOf(node)) : null, setDoomed, parents)}
            rowKey={(node) => node.id}
          />
        </Panel>
      ) : null}
      {tree && usage.data ? <UsagePanel nodes={tree.nodes} usage={usage.data} /> : null}
      {edited && tree ? (
        <NodeDialog
          key={edited.node?.id ?? "new"}
          first={edited}
          nodes={tree.nodes}
          onClose={() => setEdited(null)}
        />
      ) : null}
      {settings ? <SettingsDialog onClose={() => setSettings(false)} /> : null}
      <Confirm
        opened={doomed !== null}
        title={`Delete group ${doomed?.path ?? ""}?`}
        yes="Delete it"
        no="Keep it"
        busy={remove.isPending}
        error={remove.error}
        onYes={() => {
          if (doomed && tree) remove.mutate({ node: doomed, version: tree.version });
        }}
        onNo={() => setDoomed(null)}
      >
        <Text size="sm">It is empty. Its slots and limits are deleted with it.</Text>
      </Confirm>
    </Page>
  );
}
