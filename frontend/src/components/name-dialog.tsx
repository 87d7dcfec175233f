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
  /** What the button says. */
  action?: string;
  busy: boolean;
  error: Error | null;
  onCreate: (name: string) => void;
  onClose: () => void;
}

/** Asks for the name of something new. */
export function NameDialog(props: NameDialogProps) {
  const { title, description, pattern, rule, maxLength, action = "Create", busy, error, onCreate, onClose } = props;
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
              {action}
            </Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  );
}
