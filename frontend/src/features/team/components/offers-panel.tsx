import { Button, Group, Text } from "@mantine/core";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";

import type { Offer } from "@/api/types";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { Moment } from "@/components/moment";
import { Panel } from "@/components/panel";
import { ProblemNotice } from "@/components/problem-notice";
import { answerOffer, offersQuery } from "@/features/team/api/team";

/** Teams that have invited the signed-in user by name. Nothing is shown when there are none. */
export function OffersPanel() {
  const client = useQueryClient();
  const offers = useQuery(offersQuery());
  const answer = useMutation({
    mutationFn: ({ offer, kind }: { offer: Offer; kind: "accept" | "decline" }) => answerOffer(offer.id, kind),
    // A new team changes nearly everything that is shown.
    onSettled: () => client.invalidateQueries(),
  });
  const columns: Column<Offer>[] = [
    {
      name: "Team",
      cell: (offer) => (
        <Text size="sm" fw={550} component="span">
          {offer.team}
        </Text>
      ),
    },
    { name: "Role", cell: (offer) => offer.role },
    { name: "Invited by", quiet: true, cell: (offer) => offer.created_by },
    { name: "Expires", quiet: true, cell: (offer) => <Moment time={offer.expires_at} /> },
    {
      name: "(Actions)",
      end: true,
      cell: (offer) => (
        <Group gap={4} justify="flex-end" wrap="nowrap">
          <Button
            size="compact-sm"
            onClick={() => answer.mutate({ offer, kind: "accept" })}
            aria-label={`Join ${offer.team}`}
          >
            Join
          </Button>
          <Button
            size="compact-sm"
            variant="subtle"
            onClick={() => answer.mutate({ offer, kind: "decline" })}
            aria-label={`Decline ${offer.team}`}
          >
            Decline
          </Button>
        </Group>
      ),
    },
  ];
  const problem = offers.error ?? answer.error;
  const rows = offers.data?.items ?? [];
  if (!problem && rows.length === 0) return null;
  return (
    <Panel title="Invitations for you" flush>
      {problem ? <ProblemNotice error={problem} onRetry={() => void offers.refetch()} /> : null}
      {rows.length > 0 ? (
        <DataTable label="Invitations for you" rows={rows} columns={columns} rowKey={(offer) => offer.id} />
      ) : null}
    </Panel>
  );
}
