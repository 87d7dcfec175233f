import { Button, List, Stack, Text } from "@mantine/core";
import { useDisclosure } from "@mantine/hooks";
import { notifications } from "@mantine/notifications";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";

import type { Collection } from "@/api/deletions";
import { deleteStored, deletionPreviewQuery } from "@/api/deletions";
import type { DeletionPreview } from "@/api/types";
import { Confirm } from "@/components/confirm";
import { ProblemNotice } from "@/components/problem-notice";
import { bytes } from "@/lib/format";

interface DeleteButtonProps {
  collection: Collection;
  id: string;
  name: string;
  size?: "xs" | "sm";
}

/** Deletes something stored, after showing what would go and what depends on it. */
export function DeleteButton({ collection, id, name, size = "xs" }: DeleteButtonProps) {
  const [asking, { open, close }] = useDisclosure(false);
  const client = useQueryClient();
  const preview = useQuery({ ...deletionPreviewQuery(collection, id), enabled: asking });
  const remove = useMutation({
    mutationFn: () => deleteStored(collection, id),
    onSuccess: () => {
      close();
      const place = collection === "projects" || collection === "teams" ? "Team" : "Datasets";
      notifications.show({ message: `${name} is deleted. Restore it on the page ${place}.`, color: "gray" });
      void client.invalidateQueries();
    },
  });
  const blocked = [preview.data?.blocked_by, preview.data?.aliases].some((each) => (each?.length ?? 0) > 0);
  return (
    <>
      <Button variant="subtle" color="red" size={size} onClick={open} aria-label={`Delete ${name}`}>
        Delete
      </Button>
      <Confirm
        opened={asking}
        title={`Delete ${name}?`}
        yes="Delete"
        no="Keep"
        busy={remove.isPending || preview.isPending}
        disabled={blocked || preview.isError}
        error={remove.error}
        onYes={() => remove.mutate()}
        onNo={close}
      >
        {preview.error ? <ProblemNotice error={preview.error} /> : null}
        {preview.data ? <Consequences preview={preview.data} /> : null}
      </Confirm>
    </>
  );
}

function outcome({ kind, undo_days: days }: DeletionPreview): string {
  if (kind === "team") {
    return (
      `Access to the team ends immediately. The team can be restored for ${days} days; then its keys are destroyed, ` +
      "its objects and records are deleted, and a certificate of erasure is written. The audit trail and the costs stay."
    );
  }
  const stays = {
    job: " The job's record stays.",
    project: " The records and costs of its jobs stay; its name is free again.",
  }[kind];
  return (
    `It can be restored for ${days} days; then its objects are deleted and the storage returns to the quota.` +
    (stays ?? "")
  );
}

function Consequences({ preview }: { preview: DeletionPreview }) {
  const parts = [
    [preview.artifacts, "artifacts"],
    [preview.checkpoints, "checkpoints"],
    [preview.preparations, "prepared copies"],
    ...Object.entries(preview.contents).map(([what, number]) => [number, what.replaceAll("_", " ")]),
  ]
    .filter(([number]) => Number(number) > 0)
    .map(([number, what]) => `${number} ${what}`);
  return (
    <Stack gap="xs">
      <Text size="sm">
        {bytes(preview.size_bytes)}
        {parts.length > 0 ? `: ${parts.join(", ")}` : ""}. {outcome(preview)}
      </Text>
      {preview.registered.length > 0 ? (
        <Text size="sm">Registered models, the files of which stay: {preview.registered.join(", ")}</Text>
      ) : null}
      {preview.aliases.length > 0 ? (
        <Text size="sm">Aliases name it, so it cannot be deleted yet: {preview.aliases.join(", ")}</Text>
      ) : null}
      <Jobs label="Unfinished jobs need it, so it cannot be deleted yet:" jobs={preview.blocked_by} />
      <Jobs label="Used by finished jobs, which keep their records:" jobs={preview.used_by} />
    </Stack>
  );
}

function Jobs({ label, jobs }: { label: string; jobs: DeletionPreview["used_by"] }) {
  if (jobs.length === 0) return null;
  return (
    <>
      <Text size="sm">{label}</Text>
      <List size="sm">
        {jobs.map((job) => (
          <List.Item key={job.id}>
            {job.name} ({job.status})
          </List.Item>
        ))}
      </List>
    </>
  );
}
