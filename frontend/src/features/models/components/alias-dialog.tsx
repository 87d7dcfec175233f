import { Button, Group, Modal, Select, Stack, TextInput } from "@mantine/core";
import { notifications } from "@mantine/notifications";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import type { SubmitEvent } from "react";

import type { ModelVersion, RegisteredModel } from "@/api/types";
import { ProblemNotice } from "@/components/problem-notice";
import { modelsKey, pointAlias } from "@/features/models/api/models";
import { fieldsOf } from "@/lib/form";

interface AliasDialogProps {
  model: RegisteredModel;
  versions: ModelVersion[];
  /** The version that is chosen at first. */
  version: number;
  onClose: () => void;
}

/** Points an alias, a new one or one that the model has, to a version. */
export function AliasDialog({ model, versions, version, onClose }: AliasDialogProps) {
  const client = useQueryClient();
  const move = useMutation({
    mutationFn: (wanted: { alias: string; version: number }) => pointAlias(model.id, wanted.alias, wanted.version),
    onSuccess: (made) => {
      notifications.show({ message: `${model.name}@${made.name} is version ${made.version}.` });
      onClose();
      void client.invalidateQueries({ queryKey: modelsKey });
    },
  });
  const send = (event: SubmitEvent<HTMLFormElement>) => {
    const field = fieldsOf(event);
    move.mutate({ alias: field("alias"), version: Number(field("version")) });
  };
  return (
    <Modal opened onClose={onClose} title={`Move an alias of ${model.name}`} centered>
      <form onSubmit={send}>
        <Stack>
          <TextInput
            name="alias"
            label="Alias"
            description="Specs and downloads that name it use the new version from now on. Jobs that were submitted do not change."
            defaultValue={model.aliases[0]?.name ?? "production"}
            pattern="[a-z][a-z0-9\-]*"
            title="Lower-case letters, digits and -, beginning with a letter"
            maxLength={63}
            required
            withAsterisk={false}
            data-autofocus
          />
          <Select
            name="version"
            label="Version"
            data={versions.map((each) => ({ value: String(each.number), label: `${each.number} (${each.job?.name ?? "imported"})` }))}
            defaultValue={String(version)}
            allowDeselect={false}
          />
          {move.error ? <ProblemNotice error={move.error} /> : null}
          <Group justify="flex-end">
            <Button variant="default" onClick={onClose}>
              Cancel
            </Button>
            <Button type="submit" loading={move.isPending}>
              Move
            </Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  );
}
