import { Button, Group, Text, TextInput } from "@mantine/core";
import { useDebouncedValue } from "@mantine/hooks";
import { useInfiniteQuery } from "@tanstack/react-query";
import { useState } from "react";

import type { AuditEvent } from "@/api/types";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { EmptyState } from "@/components/empty-state";
import { Moment } from "@/components/moment";
import { Page } from "@/components/page";
import { Panel } from "@/components/panel";
import { ProblemNotice } from "@/components/problem-notice";
import type { AuditFilters } from "@/features/audit/api/audit";
import { auditQuery, exportAddress } from "@/features/audit/api/audit";

const DEBOUNCE_MS = 300;

const COLUMNS: Column<AuditEvent>[] = [
  { name: "No.", cell: (event) => event.seq },
  { name: "Time", cell: (event) => <Moment time={event.time} /> },
  { name: "Actor", cell: (event) => event.actor },
  { name: "Action", cell: (event) => <span className="mono">{event.action}</span> },
  {
    name: "Target",
    cell: (event) => (
      <span className="mono" style={{ overflowWrap: "anywhere" }}>
        {event.target_id}
      </span>
    ),
  },
  { name: "Change", quiet: true, cell: (event) => <Change event={event} /> },
  { name: "IP address", quiet: true, cell: (event) => event.address || "the platform" },
];

function Change({ event }: { event: AuditEvent }) {
  const parts = [
    event.before === null ? "" : `was ${JSON.stringify(event.before)}`,
    event.after === null ? "" : JSON.stringify(event.after),
  ].filter((part) => part !== "");
  return (
    <Text size="xs" component="span" className="mono" style={{ overflowWrap: "anywhere" }}>
      {parts.join(" → ")}
    </Text>
  );
}

/** Who did what to what. The server shows each reader what is theirs to see. */
export function AuditPage() {
  const [filters, setFilters] = useState<AuditFilters>({ actor: "", action: "", target: "" });
  const [debouncedFilters] = useDebouncedValue(filters, DEBOUNCE_MS);
  const audit = useInfiniteQuery(auditQuery(debouncedFilters));
  const rows = audit.data?.pages.flatMap((page) => page.items) ?? [];
  const field = (name: keyof AuditFilters, label: string) => (
    <TextInput
      label={label}
      value={filters[name]}
      onChange={(event) => setFilters({ ...filters, [name]: event.currentTarget.value })}
    />
  );
  const actions = (
    <Button component="a" href={exportAddress(debouncedFilters)} variant="default">
      Export as JSON lines
    </Button>
  );
  return (
    <Page title="Audit" lead="Every recorded action. Each record is chained to the one before." actions={actions}>
      <Group align="flex-end">
        {field("actor", "Who")}
        {field("action", "Action, such as job.cancel")}
        {field("target", "Target id")}
      </Group>
      {audit.error ? <ProblemNotice error={audit.error} onRetry={() => void audit.refetch()} /> : null}
      {audit.data ? (
        <Panel flush>
          {rows.length > 0 ? (
            <DataTable label="Audit" rows={rows} columns={COLUMNS} rowKey={(event) => String(event.seq)} />
          ) : (
            <EmptyState title="No records">No record matches the filters.</EmptyState>
          )}
        </Panel>
      ) : null}
      {audit.hasNextPage ? (
        <Button
          variant="default"
          style={{ alignSelf: "center" }}
          loading={audit.isFetchingNextPage}
          onClick={() => void audit.fetchNextPage()}
        >
          Load older records
        </Button>
      ) : null}
    </Page>
  );
}
