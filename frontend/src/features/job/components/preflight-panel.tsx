import { NativeSelect, Stack, Text } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";

import type { Job } from "@/api/types";
import { EmptyState } from "@/components/empty-state";
import { Panel } from "@/components/panel";
import { PreflightReportView } from "@/components/preflight-report";
import { ProblemNotice } from "@/components/problem-notice";
import { preflightsQuery } from "@/features/job/api/queries";
import { moment } from "@/lib/format";

/** What the job's attempts measured before their first step: the newest one, or the chosen one. */
export function PreflightPanel({ job }: { job: Job }) {
  const [chosen, setChosen] = useState("");
  const isAsked = job.resolved_spec["preflight"] === true;
  const { data, error, refetch } = useQuery({ ...preflightsQuery(job), enabled: isAsked });
  if (!isAsked) return null;
  const items = data?.items ?? [];
  const shown = items.find((each) => String(each.attempt) === chosen) ?? items[0];
  const tools =
    items.length > 1 ? (
      <NativeSelect
        aria-label="Attempt"
        size="xs"
        data={items.map((each) => ({ value: String(each.attempt), label: `Attempt ${each.attempt}` }))}
        value={String(shown?.attempt ?? "")}
        onChange={(event) => setChosen(event.currentTarget.value)}
      />
    ) : null;
  return (
    <Panel title="Preflight" tools={tools}>
      {error ? <ProblemNotice error={error} onRetry={() => void refetch()} /> : null}
      {data && !shown ? (
        <EmptyState title="No preflight yet">An attempt measures its nodes before its first step.</EmptyState>
      ) : null}
      {shown ? (
        <Stack gap="xs">
          <Text size="sm" c="dimmed">
            Attempt {shown.attempt}, {moment(shown.time)}
          </Text>
          <PreflightReportView report={shown} />
        </Stack>
      ) : null}
    </Panel>
  );
}
