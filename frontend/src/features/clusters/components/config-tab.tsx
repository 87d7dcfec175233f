import { Stack } from "@mantine/core";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";

import type { ClusterSetup, FullCluster, JsonObject } from "@/api/types";
import { Notice } from "@/components/notice";
import { changeCluster, clusterKeys, kindsQuery } from "@/features/clusters/api/clusters";
import { ConfigForm } from "@/features/clusters/components/config-form";
import { configText } from "@/features/clusters/lib/config-yaml";

interface ConfigTabProps {
  cluster: FullCluster;
  tag: string;
  setup: ClusterSetup;
}

export function ConfigTab({ cluster, tag, setup }: ConfigTabProps) {
  const client = useQueryClient();
  // What the edited text is based on: a change by somebody else in between is not overwritten.
  const [base, setBase] = useState(tag);
  const kinds = useQuery(kindsQuery());
  const save = useMutation({
    mutationFn: (config: JsonObject) => changeCluster(cluster.id, { config }, base),
    onSuccess: (changed) => setBase(changed.tag),
    onSettled: () => client.invalidateQueries({ queryKey: clusterKeys.all }),
  });
  return (
    <Stack gap="md">
      {setup.config_problems.length > 0 ? (
        <Notice tone="bad" title="The stored configuration is no longer valid">
          {setup.config_problems.map((problem) => (
            <p key={problem.pointer}>
              <code>{problem.pointer}</code> {problem.detail}
            </p>
          ))}
        </Notice>
      ) : null}
      {save.isSuccess ? <Notice tone="good" title="Saved. A health check follows in a moment." urgent /> : null}
      <ConfigForm
        name={cluster.name}
        kind={cluster.kind}
        schema={kinds.data?.items.find((each) => each.kind === cluster.kind)?.configuration ?? null}
        start={configText(setup.config)}
        yes="Save"
        busy={save.isPending}
        error={save.error}
        onEdit={save.reset}
        onSave={save.mutate}
      />
    </Stack>
  );
}
