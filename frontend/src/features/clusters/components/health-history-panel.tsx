import { Button, Modal, Text } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";

import type { ClusterHealthCheck } from "@/api/types";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { EmptyState } from "@/components/empty-state";
import { Moment } from "@/components/moment";
import { Panel } from "@/components/panel";
import { Pill } from "@/components/pill";
import { ProblemNotice } from "@/components/problem-notice";
import { healthChecksQuery } from "@/features/clusters/api/clusters";
import { FindingsTable } from "@/features/clusters/components/findings-table";
import { moment } from "@/lib/format";

function summary(probe: ClusterHealthCheck): string {
  const bad = probe.findings.filter((finding) => finding.level !== "ok").map((finding) => finding.check);
  return bad.length > 0 ? bad.join(", ") : "none";
}

/** History of health checks: consecutive checks with the same result are one row. */
export function HealthHistoryPanel({ clusterId }: { clusterId: string }) {
  const probes = useQuery(healthChecksQuery(clusterId));
  const [chosen, setChosen] = useState<ClusterHealthCheck | null>(null);
  const columns: Column<ClusterHealthCheck>[] = [
    { name: "First seen", cell: (probe) => <Moment time={probe.began_at} /> },
    { name: "Last seen", cell: (probe) => <Moment time={probe.seen_at} /> },
    {
      name: "State",
      cell: (probe) => <Pill tone={probe.usable ? "good" : "bad"}>{probe.usable ? "Usable" : "Not usable"}</Pill>,
    },
    { name: "Version", quiet: true, cell: (probe) => probe.version || "–" },
    { name: "Failed checks", cell: (probe) => <span className="mono">{summary(probe)}</span> },
    {
      name: "(Details)",
      end: true,
      cell: (probe) => (
        <Button
          size="compact-sm"
          variant="subtle"
          aria-label={`Findings of ${moment(probe.began_at)}`}
          onClick={() => setChosen(probe)}
        >
          Findings
        </Button>
      ),
    },
  ];
  const rows = probes.data?.items ?? [];
  return (
    <>
      {probes.error ? <ProblemNotice error={probes.error} onRetry={() => void probes.refetch()} /> : null}
      {probes.data ? (
        <Panel flush>
          {rows.length > 0 ? (
            <DataTable label="Health checks" rows={rows} columns={columns} rowKey={(probe) => probe.id} />
          ) : (
            <EmptyState title="No health check yet" />
          )}
        </Panel>
      ) : null}
      {chosen ? (
        <Modal opened onClose={() => setChosen(null)} title={moment(chosen.began_at)} size="lg" centered>
          <FindingsTable findings={chosen.findings} />
          <Text size="xs" c="dimmed" mt="md" className="mono" style={{ overflowWrap: "anywhere" }}>
            {JSON.stringify(chosen.facts)}
          </Text>
        </Modal>
      ) : null}
    </>
  );
}
