import { Button, Group, Modal, Stack, TagsInput } from "@mantine/core";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";

import { errorAt } from "@/api/problem";
import { teamKeys } from "@/api/teams";
import type { Secret } from "@/api/types";
import { ProblemNotice } from "@/components/problem-notice";
import { setDestinations } from "@/features/team/api/team";

interface DestinationsInputProps {
  value: string[];
  onChange: (value: string[]) => void;
  error: unknown;
}

/** Input of the servers that a secret may be sent to, as origins (scheme, host and port). */
export function DestinationsInput({ value, onChange, error }: DestinationsInputProps) {
  return (
    <TagsInput
      label="Destinations"
      description="Servers that it may be sent to, such as https://mlflow.example.org. MLflow credentials need one; a secret that only the job's processes read needs none."
      placeholder={value.length === 0 ? "None" : ""}
      value={value}
      onChange={onChange}
      error={errorAt(error, "/destinations")}
      acceptValueOnBlur
      maxTags={20}
    />
  );
}

interface DestinationsDialogProps {
  teamId: string;
  secret: Secret;
  onClose: () => void;
}

export function DestinationsDialog({ teamId, secret, onClose }: DestinationsDialogProps) {
  const client = useQueryClient();
  const [origins, setOrigins] = useState(secret.destinations);
  const save = useMutation({
    mutationFn: () => setDestinations(secret.id, origins),
    onSuccess: onClose,
    onSettled: () => client.invalidateQueries({ queryKey: teamKeys.of(teamId, "secrets") }),
  });
  return (
    <Modal opened onClose={onClose} title={`Destinations of ${secret.name}`} centered>
      <Stack>
        <DestinationsInput value={origins} onChange={setOrigins} error={save.error} />
        {save.error ? <ProblemNotice error={save.error} /> : null}
        <Group justify="flex-end">
          <Button variant="default" onClick={onClose}>
            Back
          </Button>
          <Button loading={save.isPending} onClick={() => save.mutate()}>
            Save
          </Button>
        </Group>
      </Stack>
    </Modal>
  );
}
