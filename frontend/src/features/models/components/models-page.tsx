import { Anchor, Group, Text } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { Link } from "react-router";

import type { RegisteredModel } from "@/api/types";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { EmptyState } from "@/components/empty-state";
import { Moment } from "@/components/moment";
import { Page } from "@/components/page";
import { Panel } from "@/components/panel";
import { Pill } from "@/components/pill";
import { ProblemNotice } from "@/components/problem-notice";
import { modelsQuery, referenceOf } from "@/features/models/api/models";
import { count } from "@/lib/format";

const COLUMNS: Column<RegisteredModel>[] = [
  {
    name: "Name",
    cell: (model) => (
      <Anchor component={Link} to={`/models/${model.id}`} size="sm" fw={550}>
        {referenceOf(model)}
      </Anchor>
    ),
  },
  { name: "Team", cell: (model) => (model.is_shared ? `${model.team.name} (shared with you)` : model.team.name) },
  { name: "Versions", end: true, cell: (model) => count(model.versions) },
  {
    name: "Aliases",
    cell: (model) => (
      <Group gap={6}>
        {model.aliases.map((alias) => (
          <Pill key={alias.name} tone="muted">{`${alias.name}: ${alias.version}`}</Pill>
        ))}
      </Group>
    ),
  },
  {
    name: "Tags",
    quiet: true,
    cell: (model) => (
      <Text size="sm" c="dimmed">
        {model.tags.join(", ")}
      </Text>
    ),
  },
  { name: "Created", end: true, quiet: true, cell: (model) => <Moment time={model.created_at} /> },
];

/** The registered models of the user's teams. */
export function ModelsPage() {
  const models = useQuery(modelsQuery());
  return (
    <Page title="Models" lead="Registered models: numbered versions of what jobs export, and aliases for them.">
      {models.error ? <ProblemNotice error={models.error} onRetry={() => void models.refetch()} /> : null}
      {models.data ? (
        <Panel flush>
          {models.data.items.length > 0 ? (
            <DataTable label="Models" rows={models.data.items} columns={COLUMNS} rowKey={(one) => one.id} />
          ) : (
            <EmptyState title="No models registered yet">
              Set <code className="mono">output.register</code> in a job's spec, or run{" "}
              <code className="mono">athanor model register NAME JOB</code>.
            </EmptyState>
          )}
        </Panel>
      ) : null}
    </Page>
  );
}
