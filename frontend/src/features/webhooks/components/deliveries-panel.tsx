import { Button, Code, Group, Modal, Stack, Text } from "@mantine/core";
import { useInfiniteQuery, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";

import type { Delivery, Webhook } from "@/api/types";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { EmptyState } from "@/components/empty-state";
import { Moment } from "@/components/moment";
import { Panel } from "@/components/panel";
import { Pill } from "@/components/pill";
import { ProblemNotice } from "@/components/problem-notice";
import { TimeAgo } from "@/components/time-ago";
import { deliveriesQuery, deliveryQuery, redeliver, webhookKeys } from "@/features/webhooks/api/webhooks";

import { duration } from "@/lib/format";
import type { Tone } from "@/lib/status";
import { label } from "@/lib/status";
import { useNow } from "@/lib/use-now";

const TONES: Record<Delivery["state"], Tone> = { pending: "waiting", delivered: "good", failed: "bad" };

function lastTry(delivery: Delivery): string {
  const last = delivery.log.at(-1);
  if (last === undefined) return "Not tried yet";
  return last.error || `Answered ${last.status ?? "nothing"} in ${duration(last.seconds)}`;
}

export function DeliveriesPanel({ webhook }: { webhook: Webhook }) {
  const client = useQueryClient();
  const deliveries = useInfiniteQuery(deliveriesQuery(webhook.id));
  const [shown, setShown] = useState<Delivery | null>(null);
  const now = useNow(true, 10_000);
  const again = useMutation({
    mutationFn: (delivery: Delivery) => redeliver(delivery.id),
    onSettled: () => client.invalidateQueries({ queryKey: webhookKeys.deliveries(webhook.id) }),
  });
  const rows = deliveries.data?.pages.flatMap((page) => page.items) ?? [];
  const columns: Column<Delivery>[] = [
    {
      name: "Event",
      cell: (delivery) => (
        <Button size="compact-sm" variant="subtle" onClick={() => setShown(delivery)}>
          {delivery.event_type}
        </Button>
      ),
    },
    { name: "State", cell: (delivery) => <Pill tone={TONES[delivery.state]}>{label(delivery.state)}</Pill> },
    { name: "Last try", quiet: true, cell: lastTry },
    {
      name: "Next try",
      quiet: true,
      cell: (delivery) => <Moment time={delivery.next_try_at} />,
    },
    { name: "Created", quiet: true, cell: (delivery) => <TimeAgo time={delivery.created_at} now={now} /> },
    {
      name: "(Redeliver)",
      end: true,
      cell: (delivery) => (
        <Button
          size="compact-sm"
          variant="subtle"
          disabled={!webhook.enabled}
          loading={again.isPending && again.variables.id === delivery.id}
          onClick={() => again.mutate(delivery)}
          aria-label={`Redeliver ${delivery.event_type}`}
        >
          Redeliver
        </Button>
      ),
    },
  ];
  return (
    <Panel title={`Deliveries to ${webhook.name || webhook.url}`} flush>
      {deliveries.error ? <ProblemNotice error={deliveries.error} /> : null}
      {again.error ? <ProblemNotice error={again.error} /> : null}
      {rows.length > 0 ? (
        <DataTable label="Deliveries" rows={rows} columns={columns} rowKey={(delivery) => delivery.id} />
      ) : deliveries.data ? (
        <EmptyState title="Nothing was delivered yet">
          Whatever happens to the team&apos;s jobs from now on is; a test shows whether it arrives.
        </EmptyState>
      ) : null}
      {deliveries.hasNextPage ? (
        <Group justify="center" p="sm">
          <Button
            variant="default"
            loading={deliveries.isFetchingNextPage}
            onClick={() => void deliveries.fetchNextPage()}
          >
            Load more
          </Button>
        </Group>
      ) : null}
      {shown ? <DeliveryDialog delivery={shown} onClose={() => setShown(null)} /> : null}
    </Panel>
  );
}

function DeliveryDialog({ delivery, onClose }: { delivery: Delivery; onClose: () => void }) {
  const full = useQuery(deliveryQuery(delivery.id));
  return (
    <Modal opened onClose={onClose} title={delivery.event_type} centered size="lg">
      <Stack>
        {full.error ? <ProblemNotice error={full.error} /> : null}
        {(full.data?.log ?? []).map((entry) => (
          <Text size="sm" key={entry.at}>
            <Moment time={entry.at} />: {entry.error || `answered ${entry.status ?? "nothing"}`} ({entry.seconds} s)
            {entry.answer ? <Code block>{entry.answer}</Code> : null}
          </Text>
        ))}
        <Text size="sm" fw={600}>
          Payload
        </Text>
        <Code block>{full.data ? JSON.stringify(JSON.parse(full.data.body), null, 2) : ""}</Code>
      </Stack>
    </Modal>
  );
}
