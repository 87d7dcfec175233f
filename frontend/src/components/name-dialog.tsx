import { Button, Group, Modal, Stack, TextInput } from "@mantine/core";
import type { SubmitEvent } from "react";

import { errorAt } from "@/api/problem";
import { ProblemNotice } from "@/components/problem-notice";
import { fieldsOf } from "@/lib/form";

interface NameDialogProps {
  title: string;
  description: string;
  /** What the name may be, as a regular expression, and in words. */
  pattern: string;
  rule: string;
  maxLength: number;
  busy: boolean;
  error: Error | null;
  onCreate: (name: string) => void;
  onClose: () => void;
}

/** Asks for the name of something new. */
export function NameDialog({ title, description, pattern, rule, maxLength, busy, error, onCreate, onClose }: NameDialogProps) {
  const create = (event: SubmitEvent<HTMLFormElement>) => onCreate(fieldsOf(event)("name"));
  return (
    <Modal opened onClose={onClose} title={title} centered>
      <form onSubmit={create}>
        <Stack>
          <TextInput
            name="name"
            label="Name"
            description={description}
            pattern={pattern}
            title={rule}
            maxLength={maxLength}
            error={errorAt(error, "/name")}
            required
            withAsterisk={false}
            data-autofocus
          />
          {error ? <ProblemNotice error={error} /> : null}
          <Group justify="flex-end">
            <Button variant="default" onClick={onClose}>
              Cancel
            </Button>
            <Button type="submit" loading={busy}>
              Create
            </Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  );
}
