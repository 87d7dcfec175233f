import { Button, Text } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";

import type { Job, Profile } from "@/api/types";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { DownloadIcon } from "@/components/icons";
import { Moment } from "@/components/moment";
import { Panel } from "@/components/panel";
import { ProblemNotice } from "@/components/problem-notice";
import { archiveAddress } from "@/features/job/api/archive";
import { profilesQuery } from "@/features/job/api/queries";
import { bytes } from "@/lib/format";

function stepsOf(profile: Profile): string {
  if (profile.first_step === null || profile.last_step === null) return `${profile.steps} steps`;
  return profile.first_step === profile.last_step
    ? `Step ${profile.first_step}`
    : `Steps ${profile.first_step} to ${profile.last_step}`;
}

const COLUMNS: Column<Profile>[] = [
  { name: "Profile", cell: stepsOf },
  {
    name: "Status",
    cell: (profile) => (
      <>
        {{ requested: "Being traced", ready: "Ready", failed: "Failed" }[profile.status]}{" "}
        <Text size="xs" c="dimmed" component="span">
          {profile.reason}
        </Text>
      </>
    ),
  },
  { name: "Size", end: true, cell: (profile) => (profile.size_bytes === null ? "" : bytes(profile.size_bytes)) },
  { name: "Requested", end: true, quiet: true, cell: (profile) => <Moment time={profile.created_at} /> },
  {
    name: "(Download)",
    end: true,
    cell: (profile) =>
      profile.artifact === null ? null : (
        <Button
          component="a"
          href={archiveAddress("artifacts", profile.artifact)}
          download
          size="xs"
          variant="default"
          leftSection={<DownloadIcon size={15} />}
          aria-label={`Download the traces: ${stepsOf(profile).toLowerCase()}`}
        >
          Download
        </Button>
      ),
  },
];

/** Traces of steps, one file a rank. Nothing is shown of a job that nobody has profiled. */
export function ProfilesPanel({ job }: { job: Job }) {
  const profiles = useQuery(profilesQuery(job));
  if (profiles.error) return <ProblemNotice error={profiles.error} onRetry={() => void profiles.refetch()} />;
  const rows = profiles.data?.items ?? [];
  if (rows.length === 0) return null;
  return (
    <Panel title="Profiles" flush>
      <DataTable label="Profiles" rows={rows} columns={COLUMNS} rowKey={(one) => one.id} />
    </Panel>
  );
}
