import { Button, Group, Modal, Text } from "@mantine/core";
import { useDisclosure } from "@mantine/hooks";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";

import { sessionQuery } from "@/api/session";
import type { ApiToken } from "@/api/types";
import { Confirm } from "@/components/confirm";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { EmptyState } from "@/components/empty-state";
import { PlusIcon } from "@/components/icons";
import { Moment } from "@/components/moment";
import { Page } from "@/components/page";
import { Panel } from "@/components/panel";
import { Pill } from "@/components/pill";
import { ProblemNotice } from "@/components/problem-notice";
import { ShownOnce } from "@/components/shown-once";
import { TimeAgo } from "@/components/time-ago";
import { revokeAllTokens, revokeToken, rotateToken, tokensKey, tokensQuery } from "@/features/tokens/api/tokens";
import { NewTokenDialog } from "@/features/tokens/components/new-token-dialog";
import type { Tone } from "@/lib/status";
import { useNow } from "@/lib/use-now";

function condition(token: ApiToken, now: number): { text: string; tone: Tone } {
  if (token.revoked_at !== null) return { text: "Revoked", tone: "muted" };
  if (token.expires_at !== null && Date.parse(token.expires_at) <= now) return { text: "Expired", tone: "muted" };
  return { text: "Valid", tone: "good" };
}

export function TokensPage() {
  const tokens = useQuery(tokensQuery());
  const session = useQuery(sessionQuery());
  const [creating, { open, close }] = useDisclosure(false);
  const [doomed, setDoomed] = useState<ApiToken | null>(null);
  const client = useQueryClient();
  const now = useNow(true, 10_000);
  const revoke = useMutation({
    mutationFn: (token: ApiToken) => revokeToken(token.id),
    onSuccess: () => setDoomed(null),
    onSettled: () => client.invalidateQueries({ queryKey: tokensKey }),
  });

  const rotate = useMutation({
    mutationFn: (token: ApiToken) => rotateToken(token.id),
    onSettled: () => client.invalidateQueries({ queryKey: tokensKey }),
  });

  const [revokingAll, { open: askForAll, close: keepAll }] = useDisclosure(false);
  const revokeAll = useMutation({
    mutationFn: revokeAllTokens,
    onSuccess: keepAll,
    onSettled: () => client.invalidateQueries({ queryKey: tokensKey }),
  });
  const names = new Map(tokens.data?.items.map((token) => [token.id, token.name]));
  const areValid = tokens.data?.items.some((token) => condition(token, now).tone === "good") ?? false;

  const columns: Column<ApiToken>[] = [
    {
      name: "Name",
      cell: (token) => (
        <Text size="sm" fw={550} component="span">
          {token.name}
        </Text>
      ),
    },
    { name: "Token", cell: (token) => <span className="mono">{token.prefix}…</span> },
    { name: "Team", cell: (token) => token.team },
    {
      name: "State",
      cell: (token) => {
        const state = condition(token, now);
        return <Pill tone={state.tone}>{state.text}</Pill>;
      },
    },
    {
      name: "Created by",
      quiet: true,
      cell: (token) => (token.parent === null ? "you" : `token ${names.get(token.parent) ?? token.parent}`),
    },
    { name: "Last used", quiet: true, cell: (token) => <TimeAgo time={token.last_used_at} now={now} /> },
    { name: "Expires", quiet: true, cell: (token) => (token.expires_at ? <Moment time={token.expires_at} /> : "never") },
    {
      name: "(Rotate)",
      end: true,
      cell: (token) =>
        condition(token, now).tone === "good" ? (
          <Button
            size="compact-sm"
            variant="subtle"
            loading={rotate.isPending && rotate.variables.id === token.id}
            onClick={() => rotate.mutate(token)}
            aria-label={`Rotate ${token.name}`}
          >
            Rotate
          </Button>
        ) : null,
    },
    {
      name: "(Revoke)",
      end: true,
      cell: (token) =>
        token.revoked_at === null ? (
          <Button
            size="compact-sm"
            variant="subtle"
            color="red"
            onClick={() => setDoomed(token)}
            aria-label={`Revoke ${token.name}`}
          >
            Revoke
          </Button>
        ) : null,
    },
  ];
  const actions = (
    <Group gap="xs">
      {areValid ? (
        <Button variant="default" onClick={askForAll}>
          Revoke all
        </Button>
      ) : null}
      <Button leftSection={<PlusIcon size={16} />} onClick={open}>
        New token
      </Button>
    </Group>
  );
  return (
    <Page title="Tokens" lead="For pipelines and the command line. Each token belongs to one team." actions={actions}>
      {tokens.error ? <ProblemNotice error={tokens.error} onRetry={() => void tokens.refetch()} /> : null}
      {tokens.data ? (
        <Panel flush>
          {tokens.data.items.length > 0 ? (
            <DataTable label="Tokens" rows={tokens.data.items} columns={columns} rowKey={(token) => token.id} />
          ) : (
            <EmptyState title="No tokens yet">
              Create one for <code>athanor login</code> or a pipeline.
            </EmptyState>
          )}
        </Panel>
      ) : null}
      <NewTokenDialog
        opened={creating}
        teams={session.data?.teams ?? []}
        hasPlatformRole={(session.data?.user?.platform_role ?? "none") !== "none"}
        onClose={close}
      />
      {rotate.error ? <ProblemNotice error={rotate.error} /> : null}
      <Modal
        opened={rotate.data !== undefined}
        onClose={() => rotate.reset()}
        title={`Copy the new token ${rotate.data?.name ?? ""} now`}
        centered
        closeOnClickOutside={false}
      >
        {rotate.data ? (
          <ShownOnce secret={rotate.data.token} onDone={() => rotate.reset()}>
            It is shown once. The old token continues to work for another hour: replace it where it is used.
          </ShownOnce>
        ) : null}
      </Modal>
      <Confirm
        opened={doomed !== null}
        title={`Revoke ${doomed?.name ?? ""}?`}
        yes="Revoke it"
        no="Keep it"
        busy={revoke.isPending}
        error={revoke.error}
        onYes={() => {
          if (doomed) revoke.mutate(doomed);
        }}
        onNo={() => setDoomed(null)}
      >
        <Text size="sm">
          Requests with this token are refused from now on, and so are requests with tokens that it created. This cannot be undone.
        </Text>
      </Confirm>
      <Confirm
        opened={revokingAll}
        title="Revoke all your tokens?"
        yes="Revoke all"
        no="Cancel"
        busy={revokeAll.isPending}
        error={revokeAll.error}
        onYes={() => revokeAll.mutate()}
        onNo={keepAll}
      >
        <Text size="sm">
          Your tokens in all teams stop working, and so do tokens that they created. You stay signed in here. This
          cannot be undone.
        </Text>
      </Confirm>
    </Page>
  );
}
