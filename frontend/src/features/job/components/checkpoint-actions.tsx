import { Button, Group, Modal, Stack, Text, TextInput } from "@mantine/core";
import { notifications } from "@mantine/notifications";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";

import type { Checkpoint } from "@/api/types";
import { ProblemNotice } from "@/components/problem-notice";
import type { CheckpointAct } from "@/features/job/api/checkpoints";
import { actOnCheckpoint } from "@/features/job/api/checkpoints";
import { fieldsOf } from "@/lib/form";

const LABELS: Record<CheckpointAct, string> = {
  mark_damaged: "Mark as damaged",
  mark_intact: "Mark as intact",
  retire: "Retire",
};

const EFFECTS: Record<CheckpointAct, string> = {
  mark_damaged: "Nothing resumes from it and no model is exported from it, until it is marked as intact.",
  mark_intact: "Resumes use it again, and verify every part of it as always.",
  retire: "Its objects are deleted from the store. This cannot be undone.",
};

function actsOf(checkpoint: Checkpoint): CheckpointAct[] {
  if (checkpoint.state === "diverged") return ["retire"];
  return [checkpoint.state === "damaged" ? "mark_intact" : "mark_damaged", "retire"];
}

/** Changes of a checkpoint's state by an administrator of its team, each with a reason and a confirmation. */
export function CheckpointActions({ checkpoint }: { checkpoint: Checkpoint }) {
  const [asked, setAsked] = useState<CheckpointAct | null>(null);
  return (
    <Group gap={4} justify="flex-end" wrap="nowrap">
      {actsOf(checkpoint).map((act) => (
        <Button
          key={act}
          variant="subtle"
          color={act === "mark_intact" ? "gray" : "red"}
          size="xs"
          onClick={() => setAsked(act)}
          aria-label={`${LABELS[act]}: checkpoint of step ${checkpoint.step}`}
        >
          {LABELS[act]}
        </Button>
      ))}
      {asked === null ? null : <ActDialog checkpoint={checkpoint} act={asked} onClose={() => setAsked(null)} />}
    </Group>
  );
}

interface ActDialogProps {
  checkpoint: Checkpoint;
  act: CheckpointAct;
  onClose: () => void;
}

function ActDialog({ checkpoint, act, onClose }: ActDialogProps) {
  const client = useQueryClient();
  const change = useMutation({
    mutationFn: (reason: string) => actOnCheckpoint(checkpoint.id, act, reason),
    onSuccess: (changed) => {
      onClose();
      notifications.show({ message: changed.notice, color: "gray" });
    },
    onSettled: () => client.invalidateQueries(),
  });
  return (
    <Modal opened onClose={onClose} title={`${LABELS[act]}: checkpoint of step ${checkpoint.step}`} centered>
      <form onSubmit={(event) => change.mutate(fieldsOf(event)("reason"))}>
        <Stack>
          <Text size="sm">{EFFECTS[act]}</Text>
          <TextInput
            name="reason"
            label="Reason"
            description="Shown in the events of the job and in the audit trail"
            maxLength={500}
            required
            withAsterisk={false}
            data-autofocus
          />
          {change.error ? <ProblemNotice error={change.error} /> : null}
          <Group justify="flex-end">
            <Button variant="default" onClick={onClose}>
              Cancel
            </Button>
            <Button type="submit" color="red" loading={change.isPending}>
              {LABELS[act]}
            </Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  );
}
