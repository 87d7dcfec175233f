import { useQuery } from "@tanstack/react-query";

import { Page } from "@/components/page";
import { ProblemNotice } from "@/components/problem-notice";
import { reconcilersQuery } from "@/features/admin/api/operations";
import { DecisionsPanel } from "@/features/admin/components/decisions-panel";
import { OrphansPanel } from "@/features/admin/components/orphans-panel";
import { ReconcilersPanel } from "@/features/admin/components/reconcilers-panel";

export function OperationsPage() {
  const reconcilers = useQuery(reconcilersQuery());
  return (
    <Page
      title="Operations"
      lead="Background reconcilers, their backlog, and orphaned objects."
    >
      {reconcilers.error ? (
        <ProblemNotice error={reconcilers.error} onRetry={() => void reconcilers.refetch()} />
      ) : null}
      {reconcilers.data ? <ReconcilersPanel reconcilers={reconcilers.data.items} /> : null}
      {reconcilers.data ? <DecisionsPanel /> : null}
      {reconcilers.data ? <OrphansPanel /> : null}
    </Page>
  );
}
