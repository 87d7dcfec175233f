import { Anchor, NativeSelect, Stack, Text, Title } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { Link } from "react-router";

import type { LineageNode, ModelVersion, RegisteredModel } from "@/api/types";
import { Panel } from "@/components/panel";
import { ProblemNotice } from "@/components/problem-notice";
import { lineageQuery } from "@/features/models/api/models";
import type { Branch, Side } from "@/features/models/lib/lineage-tree";
import { lineageTree } from "@/features/models/lib/lineage-tree";

import classes from "./lineage-panel.module.css";

const GONE = ["deleted", "purged", "hidden"];

/** The page of a node, null if it has none: deleted objects and exports have no page of their own. */
function pageOf(node: LineageNode): string | null {
  if (GONE.includes(node.state)) {
    return null;
  }
  switch (node.kind) {
    case "job":
      return `/jobs/${node.id}`;
    case "dataset":
      return `/datasets/${node.id}`;
    case "version":
    case "alias":
      return `/models/${node.id.split("@")[0] ?? ""}`;
    case "model":
    case "checkpoint":
      return node.made_by ? `/jobs/${node.made_by}` : null;
    default:
      return null;
  }
}

function Described({ node }: { node: LineageNode }) {
  const name = node.name || node.id;
  if (node.kind === "download") {
    return name;
  }
  const page = pageOf(node);
  return (
    <>
      {node.kind}{" "}
      {page ? (
        <Anchor component={Link} to={page} size="sm">
          {name}
        </Anchor>
      ) : (
        name
      )}{" "}
      <span className={classes.quiet}>
        {node.state}
        {node.digest ? (
          <>
            , <span className="mono">{node.digest.slice(0, 12)}</span>
          </>
        ) : null}
      </span>
    </>
  );
}

function Tree({ branches }: { branches: Branch[] }) {
  return (
    <ul className={classes.tree}>
      {branches.map((branch) => (
        <li key={`${branch.relation} ${branch.node.id}`}>
          <span className={classes.quiet}>{branch.relation}</span> <Described node={branch.node} />
          {branch.reference ? <span className={classes.quiet}> as {branch.reference}</span> : null}
          {branch.repeated ? <span className={classes.quiet}>, shown above</span> : null}
          {branch.branches.length > 0 ? <Tree branches={branch.branches} /> : null}
        </li>
      ))}
    </ul>
  );
}

function Half({ title, branches }: { title: string; branches: Branch[] }) {
  return (
    <section aria-label={title}>
      <Title order={3} size="h5">
        {title}
      </Title>
      {branches.length > 0 ? (
        <Tree branches={branches} />
      ) : (
        <Text size="sm" c="dimmed">
          Nothing on record.
        </Text>
      )}
    </section>
  );
}

const HALVES: [Side, string][] = [
  ["up", "Made of"],
  ["down", "Used for"],
];

/** What a version of a model was made of, and what was made from its export. */
export function LineagePanel({ model, versions }: { model: RegisteredModel; versions: ModelVersion[] }) {
  const [chosen, setChosen] = useState<string | null>(null);
  const version = versions.find((one) => String(one.number) === chosen) ?? versions[0];
  const read = useQuery({ ...lineageQuery(version?.artifact ?? ""), enabled: version !== undefined });
  if (version === undefined) {
    return null;
  }
  const choice = (
    <NativeSelect
      size="xs"
      aria-label="Version to show the lineage of"
      value={String(version.number)}
      onChange={(event) => setChosen(event.currentTarget.value)}
      data={versions.map((one) => ({ value: String(one.number), label: `${model.name}@${one.number}` }))}
    />
  );
  return (
    <Panel title="Lineage" tools={choice}>
      <Stack>
        {read.error ? <ProblemNotice error={read.error} onRetry={() => void read.refetch()} /> : null}
        {read.data
          ? HALVES.map(([side, title]) => (
              <Half key={side} title={title} branches={lineageTree(read.data, side)} />
            ))
          : null}
        {read.data?.cut.includes("team") ? (
          <Text size="sm" c="dimmed">
            It leads to a model of another team. What that was made of is not shown.
          </Text>
        ) : null}
        {read.data?.cut.some((limit) => limit !== "team") ? (
          <Text size="sm" c="dimmed">
            There may be more. Show it with <code className="mono">athanor lineage {version.artifact}</code> and a
            higher --limit or --depth.
          </Text>
        ) : null}
      </Stack>
    </Panel>
  );
}
