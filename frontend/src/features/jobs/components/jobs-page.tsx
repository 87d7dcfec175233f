import { Button } from "@mantine/core";
import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { Link } from "react-router";

import { jobsQuery } from "@/api/jobs";
import { useLiveJobs } from "@/api/live";
import { sessionQuery } from "@/api/session";
import { EmptyState } from "@/components/empty-state";
import { PlusIcon } from "@/components/icons";
import { Page } from "@/components/page";
import { Panel } from "@/components/panel";
import { ProblemNotice } from "@/components/problem-notice";
import { BulkActions } from "@/features/jobs/components/bulk-actions";
import { ColumnMenu } from "@/features/jobs/components/column-menu";
import { FilterBar } from "@/features/jobs/components/filter-bar";
import { JobsTable, JobsTableSkeleton } from "@/features/jobs/components/jobs-table";
import { NO_FILTERS, useJobFilters } from "@/features/jobs/hooks/use-job-filters";
import { readsSpec } from "@/features/jobs/lib/columns";

export function JobsPage() {
  const { state, table, filters, change } = useJobFilters();
  const [choosingColumns, setChoosingColumns] = useState(false);
  const session = useQuery(sessionQuery());
  const jobs = useInfiniteQuery(jobsQuery(filters, { withSpecs: choosingColumns || readsSpec(table.columns) }));
  useLiveJobs();
  const rows = jobs.data?.pages.flatMap((page) => page.items) ?? [];
  const filtered = JSON.stringify(state) !== JSON.stringify(NO_FILTERS);
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set());
  const choose = (id: string) =>
    setChosen((before) => {
      const after = new Set(before);
      if (!after.delete(id)) after.add(id);
      return after;
    });
  const create = (
    <Button component={Link} to="/jobs/new" leftSection={<PlusIcon size={16} />}>
      New job
    </Button>
  );
  return (
    <Page
      title="Jobs"
      actions={
        <>
          <ColumnMenu
            columns={table.columns}
            jobs={rows}
            opened={choosingColumns}
            onOpen={setChoosingColumns}
            onChange={(columns) => change({ columns })}
          />
          {chosen.size > 0 ? <BulkActions ids={[...chosen]} onDone={() => setChosen(new Set())} /> : null}
          {create}
        </>
      }
    >
      <FilterBar state={state} teams={session.data?.teams ?? []} onChange={change} />
      {jobs.error ? <ProblemNotice error={jobs.error} onRetry={() => void jobs.refetch()} /> : null}
      {jobs.isPending ? (
        <JobsTableSkeleton />
      ) : rows.length > 0 ? (
        <JobsTable
          jobs={rows}
          columns={table.columns}
          sort={table.sort}
          onSort={(sort) => change({ sort })}
          stale={jobs.isPlaceholderData}
          chosen={chosen}
          onChoose={choose}
        />
      ) : jobs.error ? null : (
        <Panel>
          {filtered ? (
            <EmptyState
              title="No job matches"
              action={
                <Button variant="default" onClick={() => change(NO_FILTERS)}>
                  Show all jobs
                </Button>
              }
            >
              Change the search or the filters.
            </EmptyState>
          ) : (
            <EmptyState title="No jobs yet" action={create}>
              Pick a preset, check its estimate and submit it. You can also use{" "}
              <code>athanor submit</code> or the REST API.
            </EmptyState>
          )}
        </Panel>
      )}
      {jobs.hasNextPage ? (
        <Button
          variant="default"
          style={{ alignSelf: "center" }}
          loading={jobs.isFetchingNextPage}
          onClick={() => void jobs.fetchNextPage()}
        >
          Load more
        </Button>
      ) : null}
    </Page>
  );
}
