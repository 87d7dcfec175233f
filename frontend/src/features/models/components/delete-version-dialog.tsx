import { Anchor, List, Text } from "@mantine/core";
import { notifications } from "@mantine/notifications";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "react-router";

import type { RegisteredModel, RegistryPreview } from "@/api/types";
import { Confirm } from "@/components/confirm";
import { deleteVersion, deletionQuery, modelsKey } from "@/features/models/api/models";

interface DeleteVersionDialogProps {
  model: RegisteredModel;
  version: number;
  onClose: () => void;
}

function Jobs({ jobs }: { jobs: RegistryPreview["used_by"] }) {
  return (
    <List size="sm">
      {jobs.map((job) => (
        <List.Item key={job.id}>
          <Anchor component={Link} to={`/jobs/${job.id}`} size="sm">
            {job.name}
          </Anchor>{" "}
          ({job.status})
        </List.Item>
      ))}
    </List>
  );
}

/** Deletes a version after showing what depends on it, which may prevent it. */
export function DeleteVersionDialog({ model, version, onClose }: DeleteVersionDialogProps) {
  const client = useQueryClient();
  const preview = useQuery(deletionQuery(model.id, version));
  const remove = useMutation({
    mutationFn: () => deleteVersion(model.id, version),
    onSuccess: () => {
      notifications.show({ message: `${model.name}@${version} is deleted.` });
      onClose();
      void client.invalidateQueries({ queryKey: modelsKey });
    },
  });
  const found = preview.data;
  const isFree = found !== undefined && found.aliases.length === 0 && found.blocked_by.length === 0;
  return (
    <Confirm
      opened
      title={`Delete ${model.name}@${version}?`}
      yes="Delete the version"
      no="Keep it"
      busy={remove.isPending}
      disabled={!isFree}
      error={remove.error ?? preview.error}
      onYes={() => remove.mutate()}
      onNo={onClose}
    >
      <Text size="sm">
        There is no undo. The number is not used again. The files stay with the job until they are deleted there.
      </Text>
      {found && found.grants.length > 0 ? (
        <Text size="sm">
          These teams read it, and lose it, also for their jobs: {found.grants.map((one) => one.team.name).join(", ")}.
        </Text>
      ) : null}
      {found && found.aliases.length > 0 ? (
        <Text size="sm">
          Not possible while an alias names it: {found.aliases.map((alias) => alias.name).join(", ")}. Move or remove it first.
        </Text>
      ) : null}
      {found && found.blocked_by.length > 0 ? (
        <>
          <Text size="sm">Not possible before these jobs, which start from it, have ended:</Text>
          <Jobs jobs={found.blocked_by} />
        </>
      ) : null}
      {found && found.used_by.length > 0 ? (
        <>
          <Text size="sm">These jobs started from it. Their records stay:</Text>
          <Jobs jobs={found.used_by} />
        </>
      ) : null}
    </Confirm>
  );
}
