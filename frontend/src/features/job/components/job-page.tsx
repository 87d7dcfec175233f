import { Skeleton, Stack, Tabs } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { lazy, Suspense } from "react";
import { useParams } from "react-router";

import { jobQuery } from "@/api/jobs";
import { useLiveJob } from "@/api/live";
import { ProblemNotice } from "@/components/problem-notice";
import { Page } from "@/components/page";
import { PageSkeleton } from "@/components/page-skeleton";
import { JobActions } from "@/features/job/components/job-actions";
import { JobFacts, JobOutcome } from "@/features/job/components/job-header";
import { LogsTab } from "@/features/job/components/logs-tab";
import { OutputsTab } from "@/features/job/components/outputs-tab";
import { OverviewTab } from "@/features/job/components/overview-tab";
import { ProgressPanel } from "@/features/job/components/progress-panel";
import { SystemTab } from "@/features/job/components/system-tab";
import { WaitCard } from "@/features/job/components/wait-card";
import { useTab } from "@/features/job/hooks/use-tab";
import { chunk } from "@/lib/chunk";

// The editor is the largest part of the dashboard, and few look at the spec of a run.
const SpecTab = lazy(() =>
  chunk(async () => ({ default: (await import("@/features/job/components/spec-tab")).SpecTab })),
);

const LABELS = { overview: "Overview", logs: "Logs", outputs: "Outputs", system: "System", spec: "Spec" };

export function JobPage() {
  const { jobId = "" } = useParams();
  const query = useQuery(jobQuery(jobId));
  useLiveJob(jobId);
  const [tab, setTab] = useTab();
  const job = query.data;
  if (!job) return <PageSkeleton title="Job" error={query.error} onRetry={() => void query.refetch()} />;
  return (
    <Page title={job.name} lead={<JobFacts job={job} />} actions={<JobActions job={job} />}>
      {query.error ? <ProblemNotice error={query.error} onRetry={() => void query.refetch()} /> : null}
      <JobOutcome job={job} />
      <WaitCard job={job} />
      <ProgressPanel job={job} />
      <Tabs value={tab} onChange={setTab} keepMounted={false}>
        <Tabs.List>
          {Object.entries(LABELS).map(([name, text]) => (
            <Tabs.Tab key={name} value={name}>
              {text}
            </Tabs.Tab>
          ))}
        </Tabs.List>
        <Stack pt="lg">
          <Tabs.Panel value="overview">
            <OverviewTab job={job} />
          </Tabs.Panel>
          <Tabs.Panel value="logs">
            <LogsTab job={job} />
          </Tabs.Panel>
          <Tabs.Panel value="outputs">
            <OutputsTab job={job} />
          </Tabs.Panel>
          <Tabs.Panel value="system">
            <SystemTab job={job} />
          </Tabs.Panel>
          <Tabs.Panel value="spec">
            <Suspense fallback={<Skeleton height={320} aria-busy="true" />}>
              <SpecTab job={job} />
            </Suspense>
          </Tabs.Panel>
        </Stack>
      </Tabs>
    </Page>
  );
}
