import type { ComponentType } from "react";
import { createBrowserRouter, Navigate } from "react-router";

import { ErrorPage, LoadingPage, NotFoundPage } from "@/app/outcome-pages";
import { Shell } from "@/app/shell";
import { SignInPage } from "@/features/session/components/sign-in-page";
import { chunk } from "@/lib/chunk";

/** Each page is a chunk of its own: the jobs table does not wait for the editor and the charts. */
const page = (load: () => Promise<ComponentType>) => ({
  lazy: async () => ({ Component: await chunk(load) }),
});

export const router = createBrowserRouter([
  {
    errorElement: <ErrorPage />,
    hydrateFallbackElement: <LoadingPage />,
    children: [
      { path: "/sign-in", Component: SignInPage },
      {
        path: "/invitation",
        ...page(async () => (await import("@/features/session/components/invitation-page")).InvitationPage),
      },
      {
        path: "/reset-password",
        ...page(async () => (await import("@/features/session/components/reset-password-page")).ResetPasswordPage),
      },
      {
        Component: Shell,
        children: [
          {
            errorElement: <ErrorPage />,
            children: [
              { index: true, element: <Navigate to="/jobs" replace /> },
              {
                path: "/jobs",
                ...page(async () => (await import("@/features/jobs/components/jobs-page")).JobsPage),
              },
              {
                path: "/jobs/new",
                ...page(async () => (await import("@/features/submit/components/submit-page")).SubmitPage),
              },
              {
                path: "/jobs/:jobId",
                ...page(async () => (await import("@/features/job/components/job-page")).JobPage),
              },
              {
                path: "/compare",
                ...page(async () => (await import("@/features/compare/components/compare-page")).ComparePage),
              },
              {
                path: "/models",
                ...page(async () => (await import("@/features/models/components/models-page")).ModelsPage),
              },
              {
                path: "/models/:modelId",
                ...page(async () => (await import("@/features/models/components/model-page")).ModelPage),
              },
              {
                path: "/datasets",
                ...page(async () => (await import("@/features/datasets/components/datasets-page")).DatasetsPage),
              },
              {
                path: "/datasets/:datasetId",
                ...page(async () => (await import("@/features/datasets/components/dataset-page")).DatasetPage),
              },
              {
                path: "/account",
                ...page(async () => (await import("@/features/account/components/account-page")).AccountPage),
              },
              {
                path: "/tokens",
                ...page(async () => (await import("@/features/tokens/components/tokens-page")).TokensPage),
              },
              {
                path: "/team",
                ...page(async () => (await import("@/features/team/components/team-page")).TeamPage),
              },
              {
                path: "/audit",
                ...page(async () => (await import("@/features/audit/components/audit-page")).AuditPage),
              },
              {
                path: "/alerts",
                ...page(async () => (await import("@/features/alerts/components/alerts-page")).AlertsPage),
              },
              {
                path: "/webhooks",
                ...page(async () => (await import("@/features/webhooks/components/webhooks-page")).WebhooksPage),
              },
              {
                path: "/clusters",
                ...page(async () => (await import("@/features/clusters/components/clusters-page")).ClustersPage),
              },
              {
                path: "/clusters/new",
                ...page(async () => (await import("@/features/clusters/components/new-cluster-page")).NewClusterPage),
              },
              {
                path: "/clusters/:clusterId",
                ...page(async () => (await import("@/features/clusters/components/cluster-page")).ClusterPage),
              },
              {
                path: "/quotas",
                ...page(async () => (await import("@/features/quotas/components/quotas-page")).QuotasPage),
              },
              {
                path: "/queue",
                ...page(async () => (await import("@/features/queue/components/queue-page")).QueuePage),
              },
              {
                path: "/budgets",
                ...page(async () => (await import("@/features/budgets/components/budgets-page")).BudgetsPage),
              },
              {
                path: "/budgets/:budgetId",
                ...page(async () => (await import("@/features/budgets/components/budget-page")).BudgetPage),
              },
              {
                path: "/costs",
                ...page(async () => (await import("@/features/budgets/components/costs-page")).CostsPage),
              },
              {
                path: "/prices",
                ...page(async () => (await import("@/features/budgets/components/prices-page")).PricesPage),
              },
              {
                path: "/simulator",
                ...page(async () => (await import("@/features/simulator/components/simulator-page")).SimulatorPage),
              },
              {
                path: "/operations",
                ...page(async () => (await import("@/features/admin/components/operations-page")).OperationsPage),
              },
              { path: "*", Component: NotFoundPage },
            ],
          },
        ],
      },
    ],
  },
]);
