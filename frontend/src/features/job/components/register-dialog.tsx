import { Autocomplete, Button, Group, Modal, Stack, Text, TextInput } from "@mantine/core";
import { notifications } from "@mantine/notifications";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import type { SubmitEvent } from "react";
import { useState } from "react";
import { useNavigate } from "react-router";

import type { Artifact, Checkpoint, Job } from "@/api/types";
import { ProblemNotice } from "@/components/problem-notice";
import type { Registration } from "@/features/job/api/registering";
import { registerArtifact, registerCheckpoint } from "@/features/job/api/registering";
import { fieldsOf } from "@/lib/form";

interface RegisterButtonProps {
  job: Job;
  /** An export of the job, or a stored checkpoint, which a job exports first. */
  of: Artifact | Checkpoint;
  /** The models that the team has. */
  models: string[];
}

const isCheckpoint = (of: Artifact | Checkpoint): of is Checkpoint => "world_size" in of;

/** Opens a dialog that registers an export, or a checkpoint, as the next version of a model. */
export function RegisterButton({ job, of, models }: RegisterButtonProps) {
  const [opened, setOpened] = useState(false);
  const name = isCheckpoint(of) ? `the checkpoint of step ${of.step}` : of.name;
  return (
    <>
      <Button variant="default" size="xs" onClick={() => setOpened(true)} aria-label={`Register ${name}`}>
        Register
      </Button>
      {opened ? <RegisterDialog job={job} of={of} models={models} onClose={() => setOpened(false)} /> : null}
    </>
  );
}

function RegisterDialog({ job, of, models, onClose }: RegisterButtonProps & { onClose: () => void }) {
  const client = useQueryClient();
  const navigate = useNavigate();
  const register = useMutation({
    mutationFn: async (wanted: Registration) => {
      if (!isCheckpoint(of)) {
        const made = await registerArtifact(job, of, wanted);
        return { message: `${wanted.model}@${made.number} is registered.`, page: `/models/${made.model.id}` };
      }
      const made = await registerCheckpoint(job, of, wanted);
      return { message: `${made.name} is submitted. It registers the model when it has exported it.`, page: `/jobs/${made.id}` };
    },
    onSuccess: ({ message, page }) => {
      notifications.show({ message });
      void client.invalidateQueries();
      void navigate(page);
    },
  });
  const send = (event: SubmitEvent<HTMLFormElement>) => {
    const field = fieldsOf(event);
    register.mutate({ model: field("model").trim(), alias: field("alias").trim() });
  };
  return (
    <Modal opened onClose={onClose} title="Register as a version of a model" centered>
      <form onSubmit={send}>
        <Stack>
          {isCheckpoint(of) ? (
            <Text size="sm">
              A job on resources like those of this one exports the checkpoint of step {of.step} first.
            </Text>
          ) : null}
          <Autocomplete
            name="model"
            label="Model"
            description="It is created if the team has none of this name"
            data={models}
            maxLength={100}
            required
            withAsterisk={false}
            data-autofocus
          />
          <TextInput
            name="alias"
            label="Alias"
            description="Optional: moved to the version, such as candidate"
            pattern="[a-z][a-z0-9\-]*"
            title="Lower-case letters, digits and -, beginning with a letter"
            maxLength={63}
          />
          {register.error ? <ProblemNotice error={register.error} /> : null}
          <Group justify="flex-end">
            <Button variant="default" onClick={onClose}>
              Cancel
            </Button>
            <Button type="submit" loading={register.isPending}>
              Register
            </Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  );
}
