import { Button } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";

import type { SimulationSummary } from "@/api/types";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { Page } from "@/components/page";
import { Panel } from "@/components/panel";
import { Pill } from "@/components/pill";
import { ProblemNotice } from "@/components/problem-notice";
import { TimeAgo } from "@/components/time-ago";
import { presentQuery, simulationQuery, simulationsQuery } from "@/features/simulator/api/simulations";
import { ProposalForm } from "@/features/simulator/components/proposal-form";
import { ResultPanel } from "@/features/simulator/components/result-panel";
import type { Tone } from "@/lib/status";
import { useNow } from "@/lib/use-now";

const TONES: Record<SimulationSummary["state"], Tone> = {
  waiting: "waiting",
  running: "active",
  done: "good",
  failed: "bad",
};

function Result({ id }: { id: string }) {
  const simulation = useQuery(simulationQuery(id));
  if (simulation.error) return <ProblemNotice error={simulation.error} onRetry={() => void simulation.refetch()} />;
  return simulation.data ? <ResultPanel simulation={simulation.data} /> : null;
}

/** For the platform's administrators and auditors: other quotas, tried on jobs before they hold. */
export function SimulatorPage() {
  const present = useQuery(presentQuery());
  const simulations = useQuery(simulationsQuery());
  const [chosen, setChosen] = useState<string | null>(null);
  const now = useNow(true, 5_000);
  const rows = simulations.data?.items ?? [];
  const columns: Column<SimulationSummary>[] = [
    { name: "Requested", cell: (row) => <TimeAgo time={row.created_at} now={now} /> },
    { name: "Requested by", cell: (row) => row.created_by },
    { name: "State", cell: (row) => <Pill tone={TONES[row.state]}>{row.state}</Pill> },
    {
      name: "(Show)",
      end: true,
      cell: (row) => (
        <Button
          size="compact-sm"
          variant="subtle"
          aria-label={`Show the simulation of ${row.created_by}, ${row.id}`}
          onClick={() => setChosen(row.id)}
        >
          Show
        </Button>
      ),
    },
  ];
  return (
    <Page
      title="Simulator"
      lead="Replays past or generated jobs on other quotas, with the policy that admits real jobs."
    >
      {present.error ? <ProblemNotice error={present.error} onRetry={() => void present.refetch()} /> : null}
      {present.data ? (
        <ProposalForm nodes={present.data.tree.nodes} settings={present.data.settings} onCreated={setChosen} />
      ) : null}
      {chosen ? <Result id={chosen} /> : null}
      {rows.length > 0 ? (
        <Panel title="Previous simulations" flush>
          <DataTable label="Simulations" rows={rows} columns={columns} rowKey={(row) => row.id} />
        </Panel>
      ) : null}
    </Page>
  );
}
