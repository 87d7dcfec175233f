import { Button, Group, Modal, Select, Stack, Text, Textarea, TextInput } from "@mantine/core";
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
  /** Whether the version must meet requirements. */
  promotes?: boolean;
  onClose: () => void;
}

function label(version: ModelVersion): string {
  const names = version.aliases.length > 0 ? `, ${version.aliases.join(", ")}` : "";
  return `${version.number} (${version.job?.name ?? "imported"}${names})`;
}

/** The requirements of a text, one in each line. */
function requirementsOf(text: string): string[] {
  return text
    .split("\n")
    .map((line) => line.trim())
    .filter((line) => line !== "");
}

/** Points an alias, a new one or one that the model has, to a version; a promotion only to a version with the results that it requires. */
export function AliasDialog({ model, versions, version, promotes = false, onClose }: AliasDialogProps) {
  const client = useQueryClient();
  const move = useMutation({
    mutationFn: (wanted: { alias: string; version: number; require?: string[] }) =>
      pointAlias(model.id, wanted.alias, wanted.version, wanted.require),
    onSuccess: (made) => {
      notifications.show({ message: `${model.name}@${made.name} is version ${made.version}.` });
      onClose();
      void client.invalidateQueries({ queryKey: modelsKey });
    },
  });
  const send = (event: SubmitEvent<HTMLFormElement>) => {
    const field = fieldsOf(event);
    const wanted = { alias: field("alias"), version: Number(field("version")) };
    move.mutate(promotes ? { ...wanted, require: requirementsOf(field("require")) } : wanted);
  };
  return (
    <Modal opened onClose={onClose} title={promotes ? `Promote a version of ${model.name}` : `Move an alias of ${model.name}`} centered>
      <form onSubmit={send}>
        <Stack>
          {promotes ? (
            <Text size="sm">The alias moves only if the newest results of the version meet all requirements.</Text>
          ) : null}
          <TextInput
            name="alias"
            label={promotes ? "To the alias" : "Alias"}
            description="Specs and downloads that name it use the version from now on. Jobs that were submitted do not change."
            defaultValue={(promotes ? undefined : model.aliases[0]?.name) ?? "production"}
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
            data={versions.map((each) => ({ value: String(each.number), label: label(each) }))}
            defaultValue={String(version)}
            allowDeselect={false}
          />
          {promotes ? (
            <Textarea
              name="require"
              label="Requirements"
              description="One in each line: METRIC or EVALUATION.METRIC, then >=, <=, > or <, and a number. Without any, the alias moves."
              placeholder={"accuracy>=0.8\nheld-out.loss<=2.1"}
              rows={3}
            />
          ) : null}
          {move.error ? <ProblemNotice error={move.error} /> : null}
          <Group justify="flex-end">
            <Button variant="default" onClick={onClose}>
              Cancel
            </Button>
            <Button type="submit" loading={move.isPending}>
              {promotes ? "Promote" : "Move"}
            </Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  );
}
