import { Button, Text } from "@mantine/core";
import { useDisclosure } from "@mantine/hooks";
import { notifications } from "@mantine/notifications";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { Link } from "react-router";

import type { JobAction } from "@/api/jobs";
import { actOnJobs, jobKeys } from "@/api/jobs";
import { Confirm } from "@/components/confirm";

const DONE: Record<JobAction, string> = { cancel: "being cancelled", pause: "being paused", resume: "resumed" };

interface BulkActionsProps {
  ids: string[];
  /** After an action: nothing is selected any more. */
  onDone: () => void;
}

/** What can be done with the selected jobs. */
export function BulkActions({ ids, onDone }: BulkActionsProps) {
  const [asking, { open, close }] = useDisclosure(false);
  const client = useQueryClient();
  const act = useMutation({
    mutationFn: (action: JobAction) => actOnJobs(ids, action),
    onSuccess: ({ items }, action) => {
      close();
      onDone();
      const refused = items.filter((item) => item.problem !== null);
      const done = items.length - refused.length;
      if (done > 0) {
        const jobs = done === 1 ? "1 job is" : `${done} jobs are`;
        notifications.show({ message: `${jobs} ${DONE[action]}.`, color: "gray" });
      }
      for (const { id, problem } of refused) {
        notifications.show({ message: `${id}: ${problem?.detail ?? ""}`, color: "red", autoClose: false });
      }
    },
    onError: (error) => notifications.show({ message: error.message, color: "red" }),
    onSettled: () => client.invalidateQueries({ queryKey: jobKeys.lists }),
  });
  const count = ids.length === 1 ? "1 job" : `${ids.length} jobs`;
  return (
    <>
      {ids.length > 1 ? (
        <Button component={Link} to={`/compare?jobs=${ids.join(",")}`} variant="default">
          Compare {count}
        </Button>
      ) : null}
      <Button variant="default" loading={act.isPending} onClick={() => act.mutate("pause")}>
        Pause {count}
      </Button>
      <Button variant="default" loading={act.isPending} onClick={() => act.mutate("resume")}>
        Resume {count}
      </Button>
      <Button variant="light" color="red" onClick={open}>
        Cancel {count}
      </Button>
      <Confirm
        opened={asking}
        title={`Cancel ${count}?`}
        yes={`Cancel ${count}`}
        no="Keep"
        busy={act.isPending}
        error={null}
        onYes={() => act.mutate("cancel")}
        onNo={close}
      >
        <Text size="sm">
          Running jobs write a checkpoint first and then end. Jobs that have ended are not changed.
        </Text>
      </Confirm>
    </>
  );
}
