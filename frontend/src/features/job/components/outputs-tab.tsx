import { Button, Stack, Text } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";

import { sessionQuery } from "@/api/session";
import type { Artifact, Checkpoint, Goodput, Job } from "@/api/types";
import { CopyButton } from "@/components/copy-button";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { DeleteButton } from "@/components/delete-button";
import { EmptyState } from "@/components/empty-state";
import { DownloadIcon } from "@/components/icons";
import { Moment } from "@/components/moment";
import { Panel } from "@/components/panel";
import { ProblemNotice } from "@/components/problem-notice";
import { TimeAgo } from "@/components/time-ago";
import { archiveAddress } from "@/features/job/api/archive";
import { artifactsQuery, checkpointsQuery, goodputQuery } from "@/features/job/api/queries";
import { modelNamesQuery } from "@/features/job/api/registering";
import { CheckpointActions } from "@/features/job/components/checkpoint-actions";
import { ProfilesPanel } from "@/features/job/components/profiles-panel";
import { RegisterButton } from "@/features/job/components/register-dialog";
import { ReplaysPanel } from "@/features/job/components/replays-panel";
import { bytes, duration, loss, shortId } from "@/lib/format";
import { flat } from "@/lib/spec-differences";
import { isFinal } from "@/lib/status";
import { useNow } from "@/lib/use-now";

const NOT_AUTHENTIC = "Not authentic: its record was changed. It cannot be downloaded or used.";

/** The newest validation loss, and the step at which it was measured where the checkpoint records it. */
function validationLoss(metrics: Checkpoint["metrics"]): string {
  const value = loss(metrics["evaluation/loss"]);
  const step = metrics["evaluation/step"];
  return step == null || metrics["evaluation/loss"] == null ? value : `${value} (step ${step})`;
}

const ARTIFACT_COLUMNS: Column<Artifact>[] = [
  {
    name: "Name",
    cell: (artifact) => (
      <>
        <Text size="sm" fw={550} component="span">
          {artifact.name}
        </Text>{" "}
        <Text size="xs" c="dimmed" component="span">
          {artifact.kind}
        </Text>
      </>
    ),
  },
  { name: "Step", end: true, cell: (artifact) => artifact.step.toLocaleString("en") },
  { name: "Files", end: true, cell: (artifact) => (artifact.authentic ? artifact.files.length : NOT_AUTHENTIC) },
  { name: "Size", end: true, cell: (artifact) => bytes(artifact.size_bytes) },
  { name: "Created", end: true, quiet: true, cell: (artifact) => <Moment time={artifact.created_at} /> },
  {
    name: "(Download)",
    end: true,
    cell: (artifact) => (
      <Button
        component="a"
        href={archiveAddress("artifacts", artifact.id)}
        download
        size="xs"
        variant={artifact.kind === "model" ? "filled" : "default"}
        leftSection={<DownloadIcon size={15} />}
        aria-label={`Download ${artifact.name}`}
      >
        Download
      </Button>
    ),
  },
];

const DELETE_ARTIFACT: Column<Artifact> = {
  name: "(Delete)",
  end: true,
  cell: (artifact) => <DeleteButton collection="artifacts" id={artifact.id} name={artifact.name} />,
};

const checkpointColumnsAt = (now: number): Column<Checkpoint>[] => [
  {
    name: "Checkpoint",
    cell: (checkpoint) => (
      <>
        <span className="mono">{shortId(checkpoint.id)}</span>{" "}
        <CopyButton value={checkpoint.id} label={`Copy the id of the checkpoint of step ${checkpoint.step}`} />
      </>
    ),
  },
  { name: "Step", end: true, cell: (checkpoint) => checkpoint.step.toLocaleString("en") },
  {
    name: "State",
    cell: (checkpoint) => (
      <>
        {checkpoint.state}
        {checkpoint.damage ? (
          <Text size="xs" c="dimmed" style={{ overflowWrap: "anywhere" }}>
            {checkpoint.damage}
          </Text>
        ) : null}
      </>
    ),
  },
  { name: "Training loss", end: true, cell: (checkpoint) => loss(checkpoint.metrics["train/loss"]) },
  { name: "Newest validation loss", end: true, cell: (checkpoint) => validationLoss(checkpoint.metrics) },
  { name: "Processes", end: true, cell: (checkpoint) => checkpoint.world_size ?? NOT_AUTHENTIC },
  { name: "Size", end: true, cell: (checkpoint) => bytes(checkpoint.size_bytes) },
  { name: "Created", end: true, quiet: true, cell: (checkpoint) => <Moment time={checkpoint.created_at} /> },
  { name: "Verified", end: true, quiet: true, cell: (checkpoint) => <TimeAgo time={checkpoint.verified_at} now={now} /> },
  {
    name: "(Download)",
    end: true,
    cell: (checkpoint) =>
      checkpoint.authentic ? (
        <Button
          component="a"
          href={archiveAddress("checkpoints", checkpoint.id)}
          download
          size="xs"
          variant="default"
          leftSection={<DownloadIcon size={15} />}
          aria-label={`Download the checkpoint of step ${checkpoint.step}, ${bytes(checkpoint.size_bytes)}`}
        >
          Download
        </Button>
      ) : null,
  },
];

const DELETE_CHECKPOINT: Column<Checkpoint> = {
  name: "(Delete)",
  end: true,
  cell: (checkpoint) => (
    <DeleteButton collection="checkpoints" id={checkpoint.id} name={`checkpoint of step ${checkpoint.step}`} />
  ),
};

/** The longest time between checkpoints that the job has chosen, and what it was chosen from. */
function Interval({ chosen }: { chosen: NonNullable<Goodput["checkpoint_interval"]> }) {
  return (
    <Text size="sm" c="dimmed">
      Saved at least every {duration(60 * chosen.minutes)}, chosen automatically: a save costs{" "}
      {duration(chosen.stall_seconds + chosen.slowdown_seconds)} of training, and a failure is expected every{" "}
      {duration(3600 * chosen.mean_hours_between_failures)}.
    </Text>
  );
}

const MANAGE_CHECKPOINT: Column<Checkpoint> = {
  name: "(Change the state)",
  end: true,
  cell: (checkpoint) => <CheckpointActions checkpoint={checkpoint} />,
};

/** A column with a button that registers an export or a checkpoint, where one can be registered. */
function registerColumn<T extends Artifact | Checkpoint>(job: Job, models: string[], can: (one: T) => boolean): Column<T> {
  return {
    name: "(Register)",
    end: true,
    cell: (one) => (can(one) ? <RegisterButton job={job} of={one} models={models} /> : null),
  };
}

export function OutputsTab({ job }: { job: Job }) {
  const now = useNow(true, 60_000);
  const session = useQuery(sessionQuery());
  const role = session.data?.teams.find((team) => team.id === job.team.id)?.role;
  const isAdmin = role === "admin";
  const isMember = role !== undefined && role !== "viewer";
  const artifacts = useQuery(artifactsQuery(job));
  const checkpoints = useQuery(checkpointsQuery(job));
  const isAutomatic = flat(job.resolved_spec).get("checkpoint.every_minutes") === "auto";
  const interval = useQuery({ ...goodputQuery(job), enabled: isAutomatic }).data?.checkpoint_interval;
  const models = (artifacts.data?.items ?? []).filter((one) => one.kind !== "profile");
  const names = useQuery({ ...modelNamesQuery(job), enabled: isMember }).data ?? [];
  const artifactColumns = [
    ...ARTIFACT_COLUMNS,
    ...(isMember ? [registerColumn<Artifact>(job, names, (one) => one.kind === "model" && one.authentic)] : []),
    ...(isFinal(job.status) ? [DELETE_ARTIFACT] : []),
  ];
  const checkpointColumns = [
    ...checkpointColumnsAt(now),
    ...(isMember ? [registerColumn<Checkpoint>(job, names, (one) => one.authentic && one.state === "intact")] : []),
    ...(isAdmin ? [MANAGE_CHECKPOINT] : []),
    ...(isFinal(job.status) ? [DELETE_CHECKPOINT] : []),
  ];
  const saved = [...(checkpoints.data?.items ?? [])].sort((a, b) => b.step - a.step);
  return (
    <Stack gap="lg">
      <Panel title="Artifacts" flush>
        {artifacts.error ? <ProblemNotice error={artifacts.error} onRetry={() => void artifacts.refetch()} /> : null}
        {models.length > 0 ? (
          <DataTable label="Artifacts" rows={models} columns={artifactColumns} rowKey={(one) => one.id} />
        ) : artifacts.isSuccess ? (
          <EmptyState title="No artifacts">
            {isFinal(job.status)
              ? "The job ended before it exported a model."
              : "The model appears here when the job has exported it."}
          </EmptyState>
        ) : null}
      </Panel>
      {models.length > 0 ? (
        <Text size="sm" c="dimmed">
          Stored encrypted; the server decrypts while it sends. In a script:{" "}
          <code className="mono">athanor download {job.id}</code>
        </Text>
      ) : null}
      <ProfilesPanel job={job} />
      <Panel title="Checkpoints" flush>
        {checkpoints.error ? (
          <ProblemNotice error={checkpoints.error} onRetry={() => void checkpoints.refetch()} />
        ) : null}
        {saved.length > 0 ? (
          <DataTable label="Checkpoints" rows={saved} columns={checkpointColumns} rowKey={(one) => one.id} />
        ) : checkpoints.isSuccess ? (
          <EmptyState title="No checkpoints">The spec says when the first is written.</EmptyState>
        ) : null}
      </Panel>
      {interval ? <Interval chosen={interval} /> : null}
      {saved.length > 0 ? (
        <Text size="sm" c="dimmed">
          In a script: <code className="mono">athanor download {job.id} --checkpoint latest</code>
        </Text>
      ) : null}
      <ReplaysPanel job={job} />
    </Stack>
  );
}
