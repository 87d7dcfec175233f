import { Button, Group, Modal, Select, Stack, Text, Textarea, TextInput } from "@mantine/core";
import { notifications } from "@mantine/notifications";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import type { SubmitEvent } from "react";

import type { ModelVersion, RegisteredModel } from "@/api/types";
import { ProblemNotice } from "@/components/problem-notice";
import { modelsKey, pointAlias } from "@/features/models/api/models";
import { fieldsOf } from "@/lib/form";

interface PromoteDialogProps {
  model: RegisteredModel;
  versions: ModelVersion[];
  /** The version that is chosen at first. */
  version: number;
  onClose: () => void;
}

function label(version: ModelVersion): string {
  const names = version.aliases.length > 0 ? `, ${version.aliases.join(", ")}` : "";
  return `${version.number} (${version.job?.name ?? "imported"}${names})`;
}

/** The requirements of a text, one in each line. */
export function requirementsOf(text: string): string[] {
  return text
    .split("\n")
    .map((line) => line.trim())
    .filter((line) => line !== "");
}

/** Points an alias to a version if the version's results meet all requirements; else nothing changes. */
export function PromoteDialog({ model, versions, version, onClose }: PromoteDialogProps) {
  const client = useQueryClient();
  const promote = useMutation({
    mutationFn: (wanted: { alias: string; version: number; require: string[] }) =>
      pointAlias(model.id, wanted.alias, wanted.version, wanted.require),
    onSuccess: (made) => {
      notifications.show({ message: `${model.name}@${made.name} is version ${made.version}.` });
      onClose();
      void client.invalidateQueries({ queryKey: modelsKey });
    },
  });
  const send = (event: SubmitEvent<HTMLFormElement>) => {
    const field = fieldsOf(event);
    promote.mutate({
      alias: field("alias"),
      version: Number(field("version")),
      require: requirementsOf(field("require")),
    });
  };
  return (
    <Modal opened onClose={onClose} title={`Promote a version of ${model.name}`} centered>
      <form onSubmit={send}>
        <Stack>
          <Text size="sm">The alias moves only if the newest results of the version meet all requirements.</Text>
          <Select
            name="version"
            label="Version"
            data={versions.map((each) => ({ value: String(each.number), label: label(each) }))}
            defaultValue={String(version)}
            allowDeselect={false}
          />
          <TextInput
            name="alias"
            label="To the alias"
            description="Specs and downloads that name it use the version from now on. Jobs that were submitted do not change."
            defaultValue="production"
            pattern="[a-z][a-z0-9\-]*"
            title="Lower-case letters, digits and -, beginning with a letter"
            maxLength={63}
            required
            withAsterisk={false}
            data-autofocus
          />
          <Textarea
            name="require"
            label="Requirements"
            description="One in each line: METRIC or EVALUATION.METRIC, then >=, <=, > or <, and a number. Without any, the alias moves."
            placeholder={"accuracy>=0.8\nheld-out.loss<=2.1"}
            rows={3}
          />
          {promote.error ? <ProblemNotice error={promote.error} /> : null}
          <Group justify="flex-end">
            <Button variant="default" onClick={onClose}>
              Cancel
            </Button>
            <Button type="submit" loading={promote.isPending}>
              Promote
            </Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  );
}
