import { NativeSelect, Stack, Text, TextInput } from "@mantine/core";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { useNavigate } from "react-router";

import { errorAt } from "@/api/problem";
import { Page } from "@/components/page";
import { ProblemNotice } from "@/components/problem-notice";
import { clusterKeys, kindsQuery, registerCluster } from "@/features/clusters/api/clusters";
import { ConfigForm } from "@/features/clusters/components/config-form";

export function NewClusterPage() {
  const client = useQueryClient();
  const navigate = useNavigate();
  const kinds = useQuery(kindsQuery());
  const [name, setName] = useState("");
  const [chosen, setChosen] = useState("");
  const register = useMutation({
    mutationFn: registerCluster,
    onSuccess: (cluster) => {
      void client.invalidateQueries({ queryKey: clusterKeys.all });
      void navigate(`/clusters/${cluster.id}`);
    },
  });
  const items = kinds.data?.items ?? [];
  const kind = items.find((each) => each.kind === chosen) ?? items[0];
  const description = kind?.configuration.description;
  return (
    <Page title="Register a cluster" lead="A place where jobs run. Pools are proposed from its nodes afterwards.">
      {kinds.error ? <ProblemNotice error={kinds.error} onRetry={() => void kinds.refetch()} /> : null}
      {kind ? (
        <ConfigForm
          key={kind.kind}
          name={name}
          kind={kind.kind}
          schema={kind.configuration}
          start=""
          yes="Register"
          busy={register.isPending}
          error={register.error}
          onEdit={register.reset}
          onSave={(config) => register.mutate({ name, kind: kind.kind, config })}
        >
          <Stack gap="md" maw={460}>
            <TextInput
              label="Name"
              description="The name used in specs: lower-case letters, digits and hyphens"
              value={name}
              onChange={(event) => setName(event.currentTarget.value)}
              pattern="[a-z0-9][a-z0-9\-]*"
              maxLength={63}
              required
              error={errorAt(register.error, "/name")}
            />
            <NativeSelect
              label="Kind"
              data={items.map((each) => ({ value: each.kind, label: each.title }))}
              value={kind.kind}
              onChange={(event) => setChosen(event.currentTarget.value)}
            />
          </Stack>
          {typeof description === "string" ? (
            <Text size="sm" style={{ whiteSpace: "pre-line" }}>
              {description}
            </Text>
          ) : null}
        </ConfigForm>
      ) : null}
    </Page>
  );
}
