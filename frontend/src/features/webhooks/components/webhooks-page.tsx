import { Button, Group, Modal, Switch, Text } from "@mantine/core";
import { useDisclosure } from "@mantine/hooks";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";

import { sessionQuery } from "@/api/session";
import type { Webhook } from "@/api/types";
import { Confirm } from "@/components/confirm";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { EmptyState } from "@/components/empty-state";
import { PlusIcon } from "@/components/icons";
import { Notice } from "@/components/notice";
import { Page } from "@/components/page";
import { Panel } from "@/components/panel";
import { Pill } from "@/components/pill";
import { ProblemNotice } from "@/components/problem-notice";
import { TimeAgo } from "@/components/time-ago";
import {
  changeWebhook,
  deleteWebhook,
  rotateSecret,
  testWebhook,
  webhookKeys,
  webhooksQuery,
} from "@/features/webhooks/api/webhooks";
import { DeliveriesPanel } from "@/features/webhooks/components/deliveries-panel";
import { SecretOnce } from "@/features/webhooks/components/secret-once";
import { WebhookFormDialog } from "@/features/webhooks/components/webhook-form-dialog";
import type { Tone } from "@/lib/status";
import { useNow } from "@/lib/use-now";

function condition(webhook: Webhook): { text: string; tone: Tone } {
  if (!webhook.enabled) return { text: "Off", tone: webhook.consecutive_failures > 0 ? "bad" : "muted" };
  if (webhook.consecutive_failures > 0) return { text: "Failing", tone: "bad" };
  return webhook.last_success_at === null ? { text: "Nothing sent yet", tone: "muted" } : { text: "Arriving", tone: "good" };
}

/** Those that the platform switched off by itself: their team should know at a glance. */
function isGivenUp(webhook: Webhook): boolean {
  return !webhook.enabled && webhook.consecutive_failures > 0;
}

export function WebhooksPage() {
  const client = useQueryClient();
  const webhooks = useQuery(webhooksQuery());
  const session = useQuery(sessionQuery());
  const [creating, { open, close }] = useDisclosure(false);
  const [doomed, setDoomed] = useState<Webhook | null>(null);
  const [chosenId, setChosenId] = useState<string | null>(null);
  const now = useNow(true, 10_000);
  const refresh = () => client.invalidateQueries({ queryKey: webhookKeys.all });
  const change = useMutation({
    mutationFn: (webhook: Webhook) => changeWebhook(webhook.id, { enabled: !webhook.enabled }),
    onSettled: refresh,
  });
  const test = useMutation({
    mutationFn: (webhook: Webhook) => testWebhook(webhook.id),
    onSuccess: (delivery) => setChosenId(delivery.webhook_id),
    onSettled: refresh,
  });
  const rotate = useMutation({ mutationFn: (webhook: Webhook) => rotateSecret(webhook.id), onSettled: refresh });
  const remove = useMutation({
    mutationFn: (webhook: Webhook) => deleteWebhook(webhook.id),
    onSuccess: () => setDoomed(null),
    onSettled: refresh,
  });
  const teams = (session.data?.teams ?? []).filter((team) => team.role === "admin");
  const items = webhooks.data?.items ?? [];
  const chosen = items.find((webhook) => webhook.id === chosenId);
  const columns: Column<Webhook>[] = [
    {
      name: "Webhook",
      cell: (webhook) => (
        <>
          <Text size="sm" fw={550} component="span">
            {webhook.name || webhook.id}
          </Text>
          <Text size="xs" c="dimmed" className="mono" style={{ overflowWrap: "anywhere" }}>
            {webhook.url}
          </Text>
        </>
      ),
    },
    { name: "Team", cell: (webhook) => webhook.team },
    { name: "Events", quiet: true, cell: (webhook) => webhook.types.join(", ") || "all" },
    {
      name: "State",
      cell: (webhook) => {
        const state = condition(webhook);
        return <Pill tone={state.tone}>{state.text}</Pill>;
      },
    },
    { name: "Last delivered", quiet: true, cell: (webhook) => <TimeAgo time={webhook.last_success_at} now={now} /> },
    {
      name: "Enabled",
      cell: (webhook) => (
        <Switch
          checked={webhook.enabled}
          onChange={() => change.mutate(webhook)}
          aria-label={`Deliver to ${webhook.name || webhook.url}`}
        />
      ),
    },
    {
      name: "(Actions)",
      end: true,
      cell: (webhook) => (
        <Group gap={4} justify="flex-end" wrap="nowrap">
          <Button size="compact-sm" variant="subtle" onClick={() => setChosenId(webhook.id)}>
            Deliveries
          </Button>
          <Button
            size="compact-sm"
            variant="subtle"
            disabled={!webhook.enabled}
            onClick={() => test.mutate(webhook)}
          >
            Test
          </Button>
          <Button size="compact-sm" variant="subtle" onClick={() => rotate.mutate(webhook)}>
            New secret
          </Button>
          <Button
            size="compact-sm"
            variant="subtle"
            color="red"
            onClick={() => setDoomed(webhook)}
            aria-label={`Delete ${webhook.name || webhook.url}`}
          >
            Delete
          </Button>
        </Group>
      ),
    },
  ];
  const create = (
    <Button leftSection={<PlusIcon size={16} />} onClick={open} disabled={teams.length === 0}>
      New webhook
    </Button>
  );
  const problem = webhooks.error ?? change.error ?? test.error ?? rotate.error;
  return (
    <Page
      title="Webhooks"
      lead="Addresses that receive a team's job events as signed CloudEvents."
      actions={create}
    >
      {problem ? <ProblemNotice error={problem} onRetry={() => void webhooks.refetch()} /> : null}
      {items.filter(isGivenUp).map((webhook) => (
        <Notice key={webhook.id} tone="bad" title={`${webhook.name || webhook.url} was disabled`}>
          {webhook.disabled_reason}. Fix the receiver, then enable the webhook again: it receives events from then on.
        </Notice>
      ))}
      {webhooks.data ? (
        <Panel flush>
          {items.length > 0 ? (
            <DataTable label="Webhooks" rows={items} columns={columns} rowKey={(webhook) => webhook.id} />
          ) : (
            <EmptyState title="No webhooks yet">
              {teams.length > 0
                ? "Add one to notify a pipeline when a job ends, without polling."
                : "A team's administrators add them."}
            </EmptyState>
          )}
        </Panel>
      ) : null}
      {chosen ? <DeliveriesPanel webhook={chosen} /> : null}
      <WebhookFormDialog opened={creating} teams={teams} onClose={close} />
      <Modal
        opened={rotate.data !== undefined}
        onClose={rotate.reset}
        title="Copy the new secret now"
        centered
        closeOnClickOutside={false}
      >
        {rotate.data ? <SecretOnce secret={rotate.data.secret} onDone={rotate.reset} /> : null}
        <Text size="sm" c="dimmed" mt="sm">
          For one day, deliveries are signed with both secrets.
        </Text>
      </Modal>
      <Confirm
        opened={doomed !== null}
        title={`Delete ${doomed?.name || "the webhook"}?`}
        yes="Delete it"
        no="Keep it"
        busy={remove.isPending}
        error={remove.error}
        onYes={() => {
          if (doomed) remove.mutate(doomed);
        }}
        onNo={() => setDoomed(null)}
      >
        <Text size="sm">{doomed?.url} receives nothing any more, and its delivery log is deleted.</Text>
      </Confirm>
    </Page>
  );
}
