import { useQuery } from "@tanstack/react-query";

import { Page } from "@/components/page";
import { ProblemNotice } from "@/components/problem-notice";
import { sweepersQuery } from "@/features/admin/api/operations";
import { DecisionsPanel } from "@/features/admin/components/decisions-panel";
import { OrphansPanel } from "@/features/admin/components/orphans-panel";
import { SweepersPanel } from "@/features/admin/components/sweepers-panel";

export function OperationsPage() {
  const sweepers = useQuery(sweepersQuery());
  return (
    <Page
      title="Operations"
      lead="Background reconcilers, their backlog, and orphaned objects."
    >
      {sweepers.error ? (
        <ProblemNotice error={sweepers.error} onRetry={() => void sweepers.refetch()} />
      ) : null}
      {sweepers.data ? <SweepersPanel sweepers={sweepers.data.items} /> : null}
      {sweepers.data ? <DecisionsPanel /> : null}
      {sweepers.data ? <OrphansPanel /> : null}
    </Page>
  );
}
