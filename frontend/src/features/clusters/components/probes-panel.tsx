import { Button, Modal, Text } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";

import type { ClusterProbe } from "@/api/types";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { EmptyState } from "@/components/empty-state";
import { Panel } from "@/components/panel";
import { Pill } from "@/components/pill";
import { ProblemNotice } from "@/components/problem-notice";
import { probesQuery } from "@/features/clusters/api/clusters";
import { FindingsTable } from "@/features/clusters/components/findings-table";
import { moment } from "@/lib/format";

function summary(probe: ClusterProbe): string {
  const bad = probe.findings.filter((finding) => finding.level !== "ok").map((finding) => finding.check);
  return bad.length > 0 ? bad.join(", ") : "nothing";
}

/** What examinations found over time: an entry for as long as it stayed the same. */
export function ProbesPanel({ clusterId }: { clusterId: string }) {
  const probes = useQuery(probesQuery(clusterId));
  const [chosen, setChosen] = useState<ClusterProbe | null>(null);
  const columns: Column<ClusterProbe>[] = [
    { name: "From", cell: (probe) => moment(probe.began_at) },
    { name: "Last so", cell: (probe) => moment(probe.seen_at) },
    {
      name: "Was",
      cell: (probe) => <Pill tone={probe.usable ? "good" : "bad"}>{probe.usable ? "Usable" : "Not usable"}</Pill>,
    },
    { name: "Version", quiet: true, cell: (probe) => probe.version || "–" },
    { name: "Not right", cell: (probe) => <span className="mono">{summary(probe)}</span> },
    {
      name: "(Look)",
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
            <DataTable label="Examinations" rows={rows} columns={columns} rowKey={(probe) => probe.id} />
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
