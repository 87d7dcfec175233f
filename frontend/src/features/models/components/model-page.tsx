import { Anchor, Button, Group, Stack, TagsInput, Text, Textarea } from "@mantine/core";
import { useDisclosure } from "@mantine/hooks";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import type { SubmitEvent } from "react";
import { useState } from "react";
import { Link, useParams } from "react-router";

import { sessionQuery } from "@/api/session";
import type { ModelVersion, RegisteredModel } from "@/api/types";
import { CopyButton } from "@/components/copy-button";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { EmptyState } from "@/components/empty-state";
import { Markdown } from "@/components/markdown";
import { Moment } from "@/components/moment";
import { Page } from "@/components/page";
import { PageSkeleton } from "@/components/page-skeleton";
import { Panel } from "@/components/panel";
import { Pill } from "@/components/pill";
import { ProblemNotice } from "@/components/problem-notice";
import { describe, modelQuery, modelsKey, referenceOf, versionsQuery } from "@/features/models/api/models";
import { AliasDialog } from "@/features/models/components/alias-dialog";
import { DeleteVersionDialog } from "@/features/models/components/delete-version-dialog";
import { EvaluationsPanel } from "@/features/models/components/evaluations-panel";
import { LineagePanel } from "@/features/models/components/lineage-panel";
import { SharingPanel } from "@/features/models/components/sharing-panel";
import { bytes, count } from "@/lib/format";
import { fieldsOf } from "@/lib/form";

const MAX_CARD = 100_000;

type OnVersion = (version: number) => void;

interface Actions {
  /** Null for those who may not promote. */
  onPromote: OnVersion | null;
  onMove: OnVersion;
  onDelete: OnVersion;
}

function columns(model: RegisteredModel, chosen: Actions): Column<ModelVersion>[] {
  return [
    { name: "Version", cell: (version) => <span className="mono">{version.number}</span> },
    {
      name: "Aliases",
      cell: (version) => (
        <Group gap={6}>
          {version.aliases.map((alias) => (
            <Pill key={alias} tone="muted">
              {alias}
            </Pill>
          ))}
        </Group>
      ),
    },
    {
      name: "Job",
      cell: (version) =>
        version.job === null ? (
          <Imported notTrainable={version.not_trainable} />
        ) : model.is_shared ? (
          version.job.name
        ) : (
          <Anchor component={Link} to={`/jobs/${version.job.id}`} size="sm">
            {version.job.name}
          </Anchor>
        ),
    },
    { name: "Step", end: true, cell: (version) => (version.job === null ? "" : count(version.step)) },
    { name: "Size", end: true, cell: (version) => bytes(version.size_bytes) },
    {
      name: "Digest",
      quiet: true,
      cell: (version) => (
        <>
          <span className="mono">{version.digest.slice(0, 12)}</span>{" "}
          <CopyButton value={version.digest} label={`Copy the digest of version ${version.number}`} />
        </>
      ),
    },
    {
      name: "Registered",
      end: true,
      quiet: true,
      cell: (version) => (
        <>
          <Moment time={version.created_at} />
          {version.created_by ? ` by ${version.created_by}` : ""}
        </>
      ),
    },
    ...(model.is_shared ? [] : [actions(model, chosen)]),
  ];
}

function Imported({ notTrainable }: { notTrainable: string }) {
  return notTrainable === "" ? (
    "Imported"
  ) : (
    <>
      Imported
      <Text size="xs" c="dimmed">
        No job can start from it: {notTrainable}
      </Text>
    </>
  );
}

function actions(model: RegisteredModel, { onPromote, onMove, onDelete }: Actions): Column<ModelVersion> {
  return {
      name: "(Actions)",
      end: true,
      cell: (version) => (
        <Group gap={4} justify="flex-end" wrap="nowrap">
          {onPromote === null ? null : (
            <Button
              variant="subtle"
              size="xs"
              onClick={() => onPromote(version.number)}
              aria-label={`Promote version ${version.number} of ${model.name}`}
            >
              Promote
            </Button>
          )}
          <Button
            variant="subtle"
            size="xs"
            onClick={() => onMove(version.number)}
            aria-label={`Move an alias of ${model.name} to version ${version.number}`}
          >
            Move alias
          </Button>
          <Button
            variant="subtle"
            size="xs"
            color="red"
            onClick={() => onDelete(version.number)}
            aria-label={`Delete version ${version.number} of ${model.name}`}
          >
            Delete
          </Button>
        </Group>
      ),
    };
}

function Versions({ model }: { model: RegisteredModel }) {
  const versions = useQuery(versionsQuery(model.id));
  const session = useQuery(sessionQuery());
  const mayPromote = session.data?.teams.some((team) => team.id === model.team.id && team.role !== "viewer") ?? false;
  const [promoting, setPromoting] = useState<number | null>(null);
  const [moving, setMoving] = useState<number | null>(null);
  const [doomed, setDoomed] = useState<number | null>(null);
  const rows = versions.data?.items ?? [];
  return (
    <Panel title="Versions" flush>
      {versions.error ? <ProblemNotice error={versions.error} onRetry={() => void versions.refetch()} /> : null}
      {rows.length > 0 ? (
        <DataTable
          label="Versions"
          rows={rows}
          columns={columns(model, {
            onPromote: mayPromote ? setPromoting : null,
            onMove: setMoving,
            onDelete: setDoomed,
          })}
          rowKey={(one) => String(one.number)}
        />
      ) : null}
      {versions.data && rows.length === 0 ? (
        <EmptyState title="No versions">
          Register the export of a job: <code className="mono">athanor model register {model.name} JOB</code>
        </EmptyState>
      ) : null}
      {promoting === null ? null : (
        <AliasDialog promotes model={model} versions={rows} version={promoting} onClose={() => setPromoting(null)} />
      )}
      {moving === null ? null : (
        <AliasDialog model={model} versions={rows} version={moving} onClose={() => setMoving(null)} />
      )}
      {doomed === null ? null : (
        <DeleteVersionDialog model={model} version={doomed} onClose={() => setDoomed(null)} />
      )}
    </Panel>
  );
}

function Card({ model }: { model: RegisteredModel }) {
  const [editing, { open, close }] = useDisclosure(false);
  const client = useQueryClient();
  const [tags, setTags] = useState(model.tags);
  const save = useMutation({
    mutationFn: (card: string) => describe(model.id, { card, tags }),
    onSuccess: () => {
      close();
      void client.invalidateQueries({ queryKey: modelsKey });
    },
  });
  const edit = (
    <Button
      size="compact-sm"
      variant="default"
      onClick={() => {
        setTags(model.tags);
        open();
      }}
    >
      Edit
    </Button>
  );
  const send = (event: SubmitEvent<HTMLFormElement>) => save.mutate(fieldsOf(event)("card"));
  return (
    <Panel title="Model card" tools={editing || model.is_shared ? null : edit}>
      {editing ? (
        <form onSubmit={send}>
          <Stack>
            <Textarea
              name="card"
              label="Model card, in Markdown"
              description="What the model is for, its data, limits and licence."
              defaultValue={model.card}
              maxLength={MAX_CARD}
              rows={14}
            />
            <TagsInput label="Tags" value={tags} onChange={setTags} />
            {save.error ? <ProblemNotice error={save.error} /> : null}
            <Group justify="flex-end">
              <Button variant="default" onClick={close}>
                Cancel
              </Button>
              <Button type="submit" loading={save.isPending}>
                Save
              </Button>
            </Group>
          </Stack>
        </form>
      ) : null}
      {!editing && model.card ? <Markdown text={model.card} /> : null}
      {!editing && !model.card ? (
        <Text size="sm" c="dimmed">
          No card yet.
        </Text>
      ) : null}
    </Panel>
  );
}

/** One registered model: its versions, aliases and card. */
export function ModelPage() {
  const id = useParams()["modelId"] ?? "";
  const read = useQuery(modelQuery(id));
  const versions = useQuery(versionsQuery(id));
  const model = read.data;
  if (model === undefined) {
    return <PageSkeleton title="Model" error={read.error} onRetry={() => void read.refetch()} />;
  }
  const [alias] = model.aliases;
  const reference = alias ? `model:${referenceOf(model)}@${alias.name}` : "";
  return (
    <Page
      title={model.name}
      lead={
        <Group gap="xs">
          {model.is_shared ? `shared by team ${model.team.name}` : model.team.name}
          {model.tags.length > 0 ? <span>{model.tags.join(", ")}</span> : null}
          {reference ? (
            <>
              <span className="mono">{reference}</span>
              <CopyButton value={reference} label="Copy the reference for a spec" />
            </>
          ) : null}
        </Group>
      }
    >
      {read.error ? <ProblemNotice error={read.error} onRetry={() => void read.refetch()} /> : null}
      <Versions model={model} />
      <EvaluationsPanel model={model} />
      <LineagePanel model={model} versions={versions.data?.items ?? []} />
      {model.is_shared ? null : <SharingPanel model={model} />}
      <Card model={model} />
    </Page>
  );
}
