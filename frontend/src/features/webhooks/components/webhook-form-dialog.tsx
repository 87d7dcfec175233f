import { Button, Group, Modal, NativeSelect, Stack, TagsInput, TextInput } from "@mantine/core";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import type { SubmitEvent } from "react";
import { useState } from "react";

import { errorAt } from "@/api/problem";
import type { NewWebhook, Team } from "@/api/types";
import { ProblemNotice } from "@/components/problem-notice";
import { createWebhook, webhookKeys } from "@/features/webhooks/api/webhooks";
import { SecretOnce } from "@/features/webhooks/components/secret-once";
import { fieldsOf } from "@/lib/form";

const TYPES = [
  "job.status.succeeded",
  "job.status.failed",
  "job.status.cancelled",
  "job.status.running",
  "job.status",
  "job.submitted",
  "job",
  "checkpoint",
  "artifact",
  "alert",
  "evaluation",
];

const FORMATS: { value: NewWebhook["format"]; label: string }[] = [
  { value: "cloudevents", label: "CloudEvents, signed" },
  { value: "slack", label: "Slack and compatible" },
  { value: "openlineage", label: "OpenLineage run events" },
];

interface WebhookFormDialogProps {
  opened: boolean;
  teams: Team[];
  onClose: () => void;
}

export function WebhookFormDialog({ opened, teams, onClose }: WebhookFormDialogProps) {
  const client = useQueryClient();
  const [types, setTypes] = useState<string[]>([]);
  const create = useMutation({
    mutationFn: createWebhook,
    onSuccess: () => client.invalidateQueries({ queryKey: webhookKeys.list }),
  });
  const submit = (event: SubmitEvent<HTMLFormElement>) => {
    const field = fieldsOf(event);
    const format = FORMATS.find(({ value }) => value === field("format"))?.value ?? "cloudevents";
    create.mutate({ url: field("url"), name: field("name"), team: field("team"), types, format });
  };
  // The secret leaves the memory of the page with the dialog.
  const close = () => {
    create.reset();
    setTypes([]);
    onClose();
  };
  const made = create.data;
  return (
    <Modal
      opened={opened}
      onClose={close}
      title={made ? "Copy the secret now" : "New webhook"}
      centered
      closeOnClickOutside={!made}
    >
      {made ? (
        <SecretOnce secret={made.secret} onDone={close} />
      ) : (
        <form onSubmit={submit}>
          <Stack>
            <TextInput
              name="url"
              type="url"
              label="Address"
              description="A public https URL"
              placeholder="https://ci.example.org/hooks/athanor"
              error={errorAt(create.error, "/url")}
              required
              withAsterisk={false}
              maxLength={500}
              data-autofocus
            />
            <TextInput name="name" label="Name" error={errorAt(create.error, "/name")} maxLength={100} />
            <NativeSelect
              name="team"
              label="Team"
              error={errorAt(create.error, "/team")}
              data={teams.map((team) => team.name)}
              required
              withAsterisk={false}
            />
            <NativeSelect name="format" label="Format" data={FORMATS} />
            <TagsInput
              label="Events"
              description="Including the types below them; none selected means all"
              placeholder={types.length === 0 ? "All" : ""}
              data={TYPES}
              value={types}
              onChange={setTypes}
              error={errorAt(create.error, "/types")}
              maxTags={20}
            />
            {create.error ? <ProblemNotice error={create.error} /> : null}
            <Group justify="flex-end">
              <Button variant="default" onClick={close}>
                Back
              </Button>
              <Button type="submit" loading={create.isPending}>
                Create
              </Button>
            </Group>
          </Stack>
        </form>
      )}
    </Modal>
  );
}
