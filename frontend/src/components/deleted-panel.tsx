import { Button, Text } from "@mantine/core";
import { notifications } from "@mantine/notifications";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";

import { deletionsQuery, restoreDeletion } from "@/api/deletions";
import type { Deletion } from "@/api/types";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { Moment } from "@/components/moment";
import { Panel } from "@/components/panel";
import { ProblemNotice } from "@/components/problem-notice";
import { bytes } from "@/lib/format";

const COLUMNS: Column<Deletion>[] = [
  {
    name: "Name",
    cell: (row) => (
      <>
        <Text size="sm" fw={550} component="span">
          {row.name}
        </Text>{" "}
        <Text size="xs" c="dimmed" component="span">
          {row.kind}
        </Text>
      </>
    ),
  },
  { name: "Team", cell: (row) => row.team.name },
  { name: "Deleted by", cell: (row) => row.deleted_by },
  { name: "Size", end: true, cell: (row) => bytes(row.size_bytes) },
  { name: "Can be restored until", end: true, cell: (row) => <Moment time={row.purge_after} /> },
  { name: "(Restore)", end: true, cell: (row) => <RestoreButton deletion={row} /> },
];

/** Deletions that can still be restored, of these kinds or of all. */
export function DeletedPanel({ kinds }: { kinds?: Deletion["kind"][] }) {
  const deletions = useQuery(deletionsQuery());
  const pending = (deletions.data?.items ?? []).filter(
    (row) => row.state === "pending" && (kinds === undefined || kinds.includes(row.kind)),
  );
  if (deletions.error) {
    return <ProblemNotice error={deletions.error} onRetry={() => void deletions.refetch()} />;
  }
  if (pending.length === 0) return null;
  return (
    <Panel title="Recently deleted" flush>
      <DataTable label="Recently deleted" rows={pending} columns={COLUMNS} rowKey={(row) => row.id} />
    </Panel>
  );
}

function RestoreButton({ deletion }: { deletion: Deletion }) {
  const client = useQueryClient();
  const restore = useMutation({
    mutationFn: () => restoreDeletion(deletion.id),
    onSuccess: () => {
      notifications.show({ message: `${deletion.name} is restored.`, color: "gray" });
      void client.invalidateQueries();
    },
    onError: (error) => notifications.show({ message: error.message, color: "red" }),
  });
  return (
    <Button
      variant="default"
      size="xs"
      loading={restore.isPending}
      onClick={() => restore.mutate()}
      aria-label={`Restore ${deletion.name}`}
    >
      Restore
    </Button>
  );
}
