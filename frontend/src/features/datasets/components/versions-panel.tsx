import { Anchor, Button, CloseButton, Group, Modal, Stack, Text } from "@mantine/core";
import { notifications } from "@mantine/notifications";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { Link } from "react-router";

import { datasetsKey, diffQuery, pointDatasetAlias, removeDatasetAlias, versionsQuery } from "@/api/datasets";
import type { Dataset, DatasetDiff } from "@/api/types";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { Moment } from "@/components/moment";
import { NameDialog } from "@/components/name-dialog";
import { Panel } from "@/components/panel";
import { Pill } from "@/components/pill";
import { ProblemNotice } from "@/components/problem-notice";
import { PreparationPill } from "@/features/datasets/components/preparation-pill";
import { labelOf } from "@/features/datasets/lib/formats";
import { bytes, count } from "@/lib/format";

interface VersionProps {
  version: Dataset;
  onClose: () => void;
}

/** The versions of a data set, with their aliases; each can be compared with the one that is shown. */
export function VersionsPanel({ dataset }: { dataset: Dataset }) {
  const versions = useQuery(versionsQuery(dataset));
  const [compared, setCompared] = useState<Dataset | null>(null);
  const [aliased, setAliased] = useState<Dataset | null>(null);
  const columns: Column<Dataset>[] = [
    {
      name: "Version",
      cell: (one) =>
        one.id === dataset.id ? (
          <Text size="sm" fw={550}>
            {one.version} (this one)
          </Text>
        ) : (
          <Anchor component={Link} to={`/datasets/${one.id}`} size="sm">
            {one.version}
          </Anchor>
        ),
    },
    { name: "Aliases", cell: (one) => <Aliases version={one} /> },
    { name: "Documents", end: true, cell: (one) => count(one.documents) },
    { name: "Size", end: true, cell: (one) => bytes(one.size_bytes) },
    { name: "State", cell: (one) => <PreparationPill preparation={one.preparation} /> },
    { name: "Uploaded", end: true, quiet: true, cell: (one) => <Moment time={one.created_at} /> },
    {
      name: "(Actions)",
      end: true,
      cell: (one) => (
        <Group gap="xs" justify="flex-end" wrap="nowrap">
          {one.id === dataset.id ? null : (
            <Button size="compact-sm" variant="default" onClick={() => setCompared(one)}>
              Compare
            </Button>
          )}
          <Button size="compact-sm" variant="default" onClick={() => setAliased(one)}>
            Alias
          </Button>
        </Group>
      ),
    },
  ];
  const rows = versions.data?.items.toSorted((one, other) => other.version - one.version);
  return (
    <Panel title="Versions" flush>
      {versions.error ? <ProblemNotice error={versions.error} onRetry={() => void versions.refetch()} /> : null}
      {rows ? <DataTable label="Versions" rows={rows} columns={columns} rowKey={(one) => one.id} /> : null}
      {compared ? <DiffDialog before={compared} after={dataset} onClose={() => setCompared(null)} /> : null}
      {aliased ? <PointDialog version={aliased} onClose={() => setAliased(null)} /> : null}
    </Panel>
  );
}

const STATES = {
  added: "added",
  removed: "removed",
  changed: "changed",
  same: "the same",
  unknown: "of equal size, not compared",
} as const;

function DiffDialog({ before, after, onClose }: { before: Dataset; after: Dataset; onClose: () => void }) {
  const diff = useQuery(diffQuery(before.id, after.id));
  return (
    <Modal opened onClose={onClose} title={`From ${labelOf(before)} to ${labelOf(after)}`} centered>
      {diff.error ? <ProblemNotice error={diff.error} onRetry={() => void diff.refetch()} /> : null}
      {diff.isPending ? <Text size="sm">Both versions are read.</Text> : null}
      {diff.data ? <Difference diff={diff.data} /> : null}
    </Modal>
  );
}

function Difference({ diff }: { diff: DatasetDiff }) {
  const { rows } = diff;
  return (
    <Stack gap="xs">
      {rows ? (
        <Text size="sm">
          Rows: {count(rows.added)} added, {count(rows.removed)} removed, {count(rows.common)} in both.
        </Text>
      ) : null}
      {Object.entries(STATES).map(([name, what]) => {
        const files = diff[name as keyof typeof STATES];
        return files.length > 0 ? (
          <Text key={name} size="sm">
            {count(files.length)} {files.length === 1 ? "file" : "files"} {what}: {files.slice(0, 10).join(", ")}
            {files.length > 10 ? ", ..." : ""}
          </Text>
        ) : null;
      })}
      {diff.note ? (
        <Text size="sm" c="dimmed">
          {diff.note}
        </Text>
      ) : null}
    </Stack>
  );
}

function PointDialog({ version, onClose }: VersionProps) {
  const client = useQueryClient();
  const point = useMutation({
    mutationFn: (alias: string) => pointDatasetAlias(version.id, alias),
    onSuccess: (_, alias) => {
      notifications.show({ message: `${version.name}@${alias} is version ${version.version}.` });
      onClose();
      void client.invalidateQueries({ queryKey: datasetsKey });
    },
  });
  return (
    <NameDialog
      title={`Point an alias to ${labelOf(version)}`}
      description="Jobs that are submitted from now on read this version by it. Jobs that were submitted do not change."
      pattern="[a-z][a-z0-9\-]*"
      rule="Lower-case letters, digits and -, beginning with a letter"
      maxLength={63}
      action="Point"
      busy={point.isPending}
      error={point.error}
      onCreate={point.mutate}
      onClose={onClose}
    />
  );
}

function Aliases({ version }: { version: Dataset }) {
  const client = useQueryClient();
  const remove = useMutation({
    mutationFn: (alias: string) => removeDatasetAlias(version.id, alias),
    onSuccess: (_, alias) => notifications.show({ message: `The alias ${alias} is removed.` }),
    onError: (error) => notifications.show({ message: error.message, color: "red", autoClose: false }),
    onSettled: () => client.invalidateQueries({ queryKey: datasetsKey }),
  });
  return (
    <Group gap="xs">
      {version.aliases.map((alias) => (
        <Group key={alias} gap={2} wrap="nowrap">
          <Pill tone="muted">{alias}</Pill>
          <CloseButton
            size="xs"
            aria-label={`Remove the alias ${alias}`}
            disabled={remove.isPending}
            onClick={() => remove.mutate(alias)}
          />
        </Group>
      ))}
    </Group>
  );
}
