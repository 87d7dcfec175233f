import { Button, Text } from "@mantine/core";
import { useDisclosure } from "@mantine/hooks";
import { notifications } from "@mantine/notifications";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate } from "react-router";

import { actOnJob, jobKeys, profileJob, retryJob, type JobAction } from "@/api/jobs";
import type { Job } from "@/api/types";
import { Confirm } from "@/components/confirm";
import { DeleteButton } from "@/components/delete-button";
import { DownloadIcon, ForkIcon, StopIcon } from "@/components/icons";
import { artifactsQuery } from "@/features/job/api/queries";
import { archiveAddress } from "@/features/job/api/archive";
import { canCancel, isFinal } from "@/lib/status";

export function JobActions({ job }: { job: Job }) {
  const [asking, { open, close }] = useDisclosure(false);
  const client = useQueryClient();
  const navigate = useNavigate();
  const cancel = useMutation({
    mutationFn: () => actOnJob(job.id, "cancel"),
    onSuccess: (after) => {
      close();
      notifications.show({ message: `${job.name} is being cancelled.`, color: "gray" });
      client.setQueryData(jobKeys.detail(job.id), after);
      void client.invalidateQueries({ queryKey: jobKeys.lists });
    },
  });
  const hold = useMutation({
    mutationFn: (action: JobAction) => actOnJob(job.id, action),
    onSuccess: (after) => {
      client.setQueryData(jobKeys.detail(job.id), after);
      void client.invalidateQueries({ queryKey: jobKeys.lists });
    },
    onError: (error) => notifications.show({ message: error.message, color: "red" }),
  });
  const retry = useMutation({
    mutationFn: () => retryJob(job.id),
    onSuccess: (made) => {
      void client.invalidateQueries({ queryKey: jobKeys.lists });
      void navigate(`/jobs/${made.id}`);
    },
    onError: (error) => notifications.show({ message: error.message, color: "red" }),
  });
  const profile = useMutation({
    mutationFn: () => profileJob(job.id),
    onSuccess: (asked) => {
      notifications.show({ message: `The next ${asked.steps} steps are traced: see Outputs.`, color: "gray" });
      void client.invalidateQueries({ queryKey: jobKeys.part(job.id, "profiles") });
    },
    onError: (error) => notifications.show({ message: error.message, color: "red" }),
  });
  const artifacts = useQuery({ ...artifactsQuery(job), enabled: job.status === "succeeded" });
  const model = artifacts.data?.items.find((artifact) => artifact.kind === "model");
  const stopping = job.desired === "stop";
  return (
    <>
      <Button
        variant="default"
        component={Link}
        to={`/jobs/new?fork=${encodeURIComponent(job.id)}`}
        leftSection={<ForkIcon size={16} />}
      >
        Fork
      </Button>
      {isFinal(job.status) && job.status !== "succeeded" ? (
        <Button variant="default" loading={retry.isPending} onClick={() => retry.mutate()}>
          Retry
        </Button>
      ) : null}
      {model ? (
        <Button component="a" href={archiveAddress("artifacts", model.id)} download leftSection={<DownloadIcon size={16} />}>
          Download model
        </Button>
      ) : null}
      {job.status === "running" && job.desired === "run" && job.progress !== null ? (
        <Button variant="default" loading={profile.isPending} onClick={() => profile.mutate()}>
          Profile
        </Button>
      ) : null}
      {canCancel(job.status) && !stopping ? (
        <Button
          variant="default"
          loading={hold.isPending}
          onClick={() => hold.mutate(job.desired === "pause" ? "resume" : "pause")}
        >
          {job.desired === "pause" ? "Resume" : "Pause"}
        </Button>
      ) : null}
      {canCancel(job.status) ? (
        <Button
          variant="light"
          color="red"
          leftSection={<StopIcon size={16} />}
          onClick={open}
          disabled={stopping}
        >
          {stopping ? "Cancelling" : "Cancel"}
        </Button>
      ) : null}
      {isFinal(job.status) ? (
        <DeleteButton collection="jobs" id={job.id} name={`what ${job.name} stored`} size="sm" />
      ) : null}
      <Confirm
        opened={asking}
        title={`Cancel ${job.name}?`}
        yes="Cancel the job"
        no="Keep it running"
        busy={cancel.isPending}
        error={cancel.error}
        onYes={() => cancel.mutate()}
        onNo={close}
      >
        <Text size="sm">
          A running job writes a checkpoint first and then ends. What was saved stays; the run itself does not
          continue, but it can be forked.
        </Text>
      </Confirm>
    </>
  );
}
