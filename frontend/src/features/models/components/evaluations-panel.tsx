import { Anchor, Group, Text } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { Link } from "react-router";

import type { ComparedResult, RegisteredModel } from "@/api/types";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { EmptyState } from "@/components/empty-state";
import { Panel } from "@/components/panel";
import { Pill } from "@/components/pill";
import { ProblemNotice } from "@/components/problem-notice";
import { evaluationsQuery, referenceOf } from "@/features/models/api/models";
import { count } from "@/lib/format";

const DIGITS = 4;

const figure = (value: number) => String(Number(value.toPrecision(DIGITS)));

/** A difference with its meaning, such as "+0.1, better"; empty if there is none. */
export function differenceText({ difference }: ComparedResult): string {
  if (!difference) {
    return "";
  }
  const value = `${difference.value < 0 ? "" : "+"}${figure(difference.value)}`;
  if (difference.is_significant === null) {
    return `${value}, significance unknown`;
  }
  const test = difference.p_value === null ? "" : ` (p ${Number(difference.p_value.toPrecision(2))})`;
  if (!difference.is_significant) {
    return `${value}, not significant${test}`;
  }
  return `${value}, ${difference.is_better ? "better" : "worse"}${test}`;
}

function columns(against: number | null): Column<ComparedResult>[] {
  return [
    { name: "Evaluation", cell: ({ result }) => result.evaluation },
    { name: "Metric", cell: ({ result }) => result.metric.replaceAll("_", " ") },
    {
      name: "Version",
      cell: ({ version, aliases }) => (
        <Group gap={6} wrap="nowrap">
          <span className="mono">{version}</span>
          {aliases.map((alias) => (
            <Pill key={alias} tone="muted">
              {alias}
            </Pill>
          ))}
        </Group>
      ),
    },
    { name: "Value", end: true, cell: ({ result }) => figure(result.value) },
    {
      name: "95 % interval",
      end: true,
      cell: ({ result }) =>
        result.low === null || result.high === null ? "" : `${figure(result.low)} to ${figure(result.high)}`,
    },
    { name: "n", end: true, cell: ({ result }) => count(result.n) },
    { name: against === null ? "Difference" : `Difference to ${against}`, end: true, cell: differenceText },
    {
      name: "Job",
      quiet: true,
      cell: ({ result }) => (
        <Anchor component={Link} to={`/jobs/${result.job.id}`} size="sm">
          {result.job.name}
        </Anchor>
      ),
    },
    {
      name: "Data",
      quiet: true,
      cell: ({ result }) => (
        <>
          {result.data_source}
          {result.trained_on && result.trained_on.length > 0 ? (
            <>
              {" "}
              <Pill tone="waiting">trained on</Pill>
            </>
          ) : null}
        </>
      ),
    },
  ];
}

/** The evaluations of a model's versions. */
export function EvaluationsPanel({ model }: { model: RegisteredModel }) {
  const read = useQuery(evaluationsQuery(model.id));
  const found = read.data;
  const rows = found?.items ?? [];
  const isSeen = rows.some(({ result }) => result.trained_on !== null && result.trained_on.length > 0);
  return (
    <Panel title="Evaluations" flush>
      {read.error ? <ProblemNotice error={read.error} onRetry={() => void read.refetch()} /> : null}
      {rows.length > 0 ? (
        <DataTable
          label="Evaluations"
          rows={rows}
          columns={columns(found?.against ?? null)}
          rowKey={({ result, version }) => `${result.evaluation} ${result.metric} ${version}`}
        />
      ) : null}
      {isSeen ? (
        <Text size="sm" p="sm">
          Results marked &quot;trained on&quot; are on data that the model was trained on. They say little about other data.
        </Text>
      ) : null}
      {found && rows.length === 0 ? (
        <EmptyState title="No evaluations">
          Run a job with <code className="mono">evaluation</code> and the model{" "}
          <code className="mono">model:{referenceOf(model)}@ALIAS</code>.
        </EmptyState>
      ) : null}
    </Panel>
  );
}
