import { Anchor, Button, Group, SimpleGrid, Text } from "@mantine/core";
import { useDisclosure } from "@mantine/hooks";
import { notifications } from "@mantine/notifications";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import type { ReactNode } from "react";
import { Link, useParams } from "react-router";

import {
  datasetJobsQuery,
  datasetQuery,
  datasetsKey,
  forgetPreparations,
  prepareDataset,
  previewQuery,
} from "@/api/datasets";
import type { DatasetDetail, JobSummary } from "@/api/types";
import { Confirm } from "@/components/confirm";
import { CopyButton } from "@/components/copy-button";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { DeleteButton } from "@/components/delete-button";
import { EmptyState } from "@/components/empty-state";
import { Moment } from "@/components/moment";
import { Notice } from "@/components/notice";
import { Page } from "@/components/page";
import { PageSkeleton } from "@/components/page-skeleton";
import { Panel } from "@/components/panel";
import { ProblemNotice } from "@/components/problem-notice";
import { StatusBadge } from "@/components/status-badge";
import { PreparationPill } from "@/features/datasets/components/preparation-pill";
import { ReportPanel } from "@/features/datasets/components/report-panel";
import { Rows } from "@/features/datasets/components/rows";
import { VersionsPanel } from "@/features/datasets/components/versions-panel";
import { formatOf, labelOf } from "@/features/datasets/lib/formats";
import { bytes, count } from "@/lib/format";

function Fact({ name, children }: { name: string; children: ReactNode }) {
  return (
    <div>
      <Text size="xs" c="dimmed">
        {name}
      </Text>
      <Text size="sm" component="div">
        {children}
      </Text>
    </div>
  );
}

function Facts({ dataset }: { dataset: DatasetDetail }) {
  return (
    <SimpleGrid cols={{ base: 2, sm: 3, lg: 4 }}>
      <Fact name="Format">{formatOf(dataset)}</Fact>
      {dataset.text_field ? (
        <Fact name={dataset.format === "chat" ? "Field with the messages" : "Field with the text"}>
          <span className="mono">{dataset.text_field}</span>
        </Fact>
      ) : null}
      <Fact name="Documents">{count(dataset.documents)}</Fact>
      <Fact name="Size">{dataset.origin === "sealed" ? bytes(dataset.size_bytes) : "-"}</Fact>
      <Fact name="Files">{dataset.origin === "sealed" ? count(dataset.files.length) : "-"}</Fact>
      <Fact name="Team">{dataset.team.name}</Fact>
      <Fact name="Created">
        <Moment time={dataset.created_at} />
        {dataset.created_by ? ` by ${dataset.created_by}` : ""}
      </Fact>
      {dataset.digest ? (
        <Fact name="Digest (SHA-256)">
          <span className="mono">{dataset.digest.slice(0, 12)}…</span>{" "}
          <CopyButton value={dataset.digest} label="Copy the digest" />
        </Fact>
      ) : null}
    </SimpleGrid>
  );
}

function Preview({ id }: { id: string }) {
  const preview = useQuery(previewQuery(id));
  return (
    <Panel title="First rows">
      {preview.error ? <ProblemNotice error={preview.error} onRetry={() => void preview.refetch()} /> : null}
      {preview.data ? (
        <>
          {preview.data.note ? (
            <Notice tone="waiting">
              <p>{preview.data.note}</p>
            </Notice>
          ) : null}
          <Rows
            rows={preview.data.rows}
            messagesField={preview.data.format === "chat" ? preview.data.text_field : ""}
          />
        </>
      ) : null}
    </Panel>
  );
}

type TokenisedForm = DatasetDetail["tokenised_forms"][number];

const FORMS: Column<TokenisedForm>[] = [
  { name: "Vocabulary", end: true, cell: (form) => count(form.vocab_size) },
  { name: "Training tokens", end: true, cell: (form) => count(form.train_tokens) },
  { name: "Validation tokens", end: true, cell: (form) => count(form.validation_tokens) },
  { name: "Documents", end: true, cell: (form) => count(form.documents) },
  { name: "Size", end: true, cell: (form) => bytes(form.size_bytes) },
  {
    name: "Fingerprint",
    quiet: true,
    cell: (form) => (
      <>
        <span className="mono">{form.fingerprint.slice(0, 12)}</span>{" "}
        <CopyButton value={form.fingerprint} label="Copy the fingerprint" />
      </>
    ),
  },
  {
    name: "Created",
    end: true,
    quiet: true,
    cell: (form) => (
      <Anchor component={Link} to={`/jobs/${form.job_id}`} size="sm">
        <Moment time={form.created_at} />
      </Anchor>
    ),
  },
];

function Tokenised({ dataset }: { dataset: DatasetDetail }) {
  const [asking, { open, close }] = useDisclosure(false);
  const client = useQueryClient();
  const refresh = () => client.invalidateQueries({ queryKey: datasetsKey });
  const prepare = useMutation({ mutationFn: prepareDataset, onSuccess: refresh });
  const discard = useMutation({
    mutationFn: () => forgetPreparations(dataset.id),
    onSuccess: ({ forgotten }) => {
      close();
      notifications.show({ message: `${forgotten} tokenised ${forgotten === 1 ? "form" : "forms"} discarded.` });
      void refresh();
    },
  });
  const { job, state } = dataset.preparation;
  const forms = dataset.tokenised_forms;
  const tools = (
    <Group gap="xs">
      {forms.length > 0 ? (
        <Button size="compact-sm" variant="default" onClick={open}>
          Discard
        </Button>
      ) : null}
      {dataset.origin === "sealed" ? (
        <Button
          size="compact-sm"
          variant="default"
          loading={prepare.isPending}
          disabled={state === "running"}
          onClick={() => prepare.mutate(dataset)}
        >
          Tokenise
        </Button>
      ) : null}
    </Group>
  );
  return (
    <Panel title="Tokenised" tools={tools} flush>
      {prepare.error ? <ProblemNotice error={prepare.error} /> : null}
      {state !== "ready" && job ? (
        <Notice tone={state === "failed" ? "bad" : state === "running" ? "active" : "muted"}>
          <p>
            <Anchor component={Link} to={`/jobs/${job.id}`} size="sm">
              {job.name}
            </Anchor>{" "}
            {state === "running" ? "tokenises it." : `is ${job.status}.`} {job.reason?.message} {job.reason?.remedy}
          </p>
        </Notice>
      ) : null}
      {forms.length > 0 ? (
        <DataTable label="Tokenised forms" rows={forms} columns={FORMS} rowKey={(form) => form.recipe} />
      ) : (
        <EmptyState title="Not tokenised">The first job that trains on it tokenises it.</EmptyState>
      )}
      <Confirm
        opened={asking}
        title="Discard the tokenised forms?"
        yes="Discard"
        no="Keep"
        busy={discard.isPending}
        error={discard.error}
        onYes={() => discard.mutate()}
        onNo={close}
      >
        <Text size="sm">
          The next job that trains on this data set tokenises it again. Running jobs are not affected.
        </Text>
      </Confirm>
    </Panel>
  );
}

const JOBS: Column<JobSummary>[] = [
  {
    name: "Job",
    cell: (job) => (
      <Anchor component={Link} to={`/jobs/${job.id}`} size="sm">
        {job.name}
      </Anchor>
    ),
  },
  { name: "Status", cell: (job) => <StatusBadge status={job.status} /> },
  { name: "User", quiet: true, cell: (job) => job.created_by },
  { name: "Submitted", end: true, quiet: true, cell: (job) => <Moment time={job.created_at} /> },
];

function Jobs({ id }: { id: string }) {
  const jobs = useQuery(datasetJobsQuery(id));
  return (
    <Panel title="Jobs that read it" flush>
      {jobs.error ? <ProblemNotice error={jobs.error} onRetry={() => void jobs.refetch()} /> : null}
      {jobs.data && jobs.data.items.length > 0 ? (
        <DataTable label="Jobs that read it" rows={jobs.data.items} columns={JOBS} rowKey={(job) => job.id} />
      ) : null}
      {jobs.data?.items.length === 0 ? <EmptyState title="None">No job has read it.</EmptyState> : null}
      {jobs.data?.next_cursor ? (
        <Text size="sm" c="dimmed" p="sm">
          The latest {jobs.data.items.length} are shown.
        </Text>
      ) : null}
    </Panel>
  );
}

/** One version of a data set: the other versions, its first rows, its data report, its tokenised forms, and the jobs that read it. */
export function DatasetPage() {
  const id = useParams()["datasetId"] ?? "";
  const read = useQuery(datasetQuery(id));
  const dataset = read.data;
  if (dataset === undefined) {
    return <PageSkeleton title="Data set" error={read.error} onRetry={() => void read.refetch()} />;
  }
  return (
    <Page
      title={labelOf(dataset)}
      lead={
        <Group gap="xs">
          <PreparationPill preparation={dataset.preparation} />
          <span className="mono">{dataset.spec_source}</span>
          <CopyButton value={dataset.spec_source} label="Copy the source for a spec" />
        </Group>
      }
      actions={
        dataset.origin === "sealed" ? (
          <DeleteButton collection="datasets" id={dataset.id} name={labelOf(dataset)} size="sm" />
        ) : null
      }
    >
      {read.error ? <ProblemNotice error={read.error} onRetry={() => void read.refetch()} /> : null}
      <Panel>
        <Facts dataset={dataset} />
      </Panel>
      {dataset.origin === "sealed" ? <VersionsPanel dataset={dataset} /> : null}
      {dataset.origin === "sealed" ? <Preview id={id} /> : null}
      <ReportPanel dataset={dataset} />
      <Tokenised dataset={dataset} />
      {dataset.origin !== "builtin" ? <Jobs id={id} /> : null}
    </Page>
  );
}
