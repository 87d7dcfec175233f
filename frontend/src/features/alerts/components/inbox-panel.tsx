import { Anchor, Button, Text } from "@mantine/core";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "react-router";

import type { Notification } from "@/api/types";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { EmptyState } from "@/components/empty-state";
import { Panel } from "@/components/panel";
import { Pill } from "@/components/pill";
import { ProblemNotice } from "@/components/problem-notice";
import { TimeAgo } from "@/components/time-ago";
import { alertKeys, inboxQuery, markRead } from "@/features/alerts/api/alerts";
import { severityTone } from "@/features/alerts/lib/severity";

function mailText(note: Notification): string {
  if (note.mail_state) return note.mail_error ? `${note.mail_state}: ${note.mail_error}` : note.mail_state;
  return note.mail_at === null ? "not mailed" : "waiting";
}

/** The user's newest notifications. */
export function InboxPanel({ now }: { now: number }) {
  const client = useQueryClient();
  const inbox = useQuery(inboxQuery());
  const read = useMutation({
    mutationFn: (ids: string[] | undefined) => markRead(ids),
    onSettled: () => client.invalidateQueries({ queryKey: alertKeys.all }),
  });
  const items = inbox.data?.items ?? [];
  const columns: Column<Notification>[] = [
    { name: "Severity", cell: (note) => <Pill tone={severityTone(note)}>{note.severity}</Pill> },
    {
      name: "Notification",
      cell: (note) => (
        <>
          <Text size="sm" fw={note.read_at === null ? 650 : 400} component="span">
            {note.job_id === "" ? (
              note.title
            ) : (
              <Anchor component={Link} to={`/jobs/${note.job_id}`} inherit>
                {note.title}
              </Anchor>
            )}
          </Text>
          <Text size="xs" c="dimmed">
            {note.text}
          </Text>
        </>
      ),
    },
    { name: "Time", quiet: true, cell: (note) => <TimeAgo time={note.created_at} now={now} /> },
    { name: "Mail", quiet: true, cell: mailText },
    {
      name: "(Actions)",
      end: true,
      cell: (note) =>
        note.read_at === null ? (
          <Button size="compact-sm" variant="subtle" onClick={() => read.mutate([note.id])} aria-label={`Mark ${note.title} as read`}>
            Mark as read
          </Button>
        ) : null,
    },
  ];
  const all = (
    <Button
      size="compact-sm"
      variant="default"
      disabled={!items.some((note) => note.read_at === null)}
      onClick={() => read.mutate(undefined)}
    >
      Mark all as read
    </Button>
  );
  const problem = inbox.error ?? read.error;
  return (
    <Panel title="Inbox" tools={all} flush>
      {problem ? <ProblemNotice error={problem} /> : null}
      {items.length > 0 ? (
        <DataTable label="Inbox" rows={items} columns={columns} rowKey={(note) => note.id} />
      ) : inbox.data ? (
        <EmptyState title="No notifications yet">You are notified here when an alert fires or is resolved.</EmptyState>
      ) : null}
    </Panel>
  );
}
