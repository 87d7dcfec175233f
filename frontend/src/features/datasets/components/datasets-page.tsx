import { Anchor, Button } from "@mantine/core";
import { useDisclosure } from "@mantine/hooks";
import { useQuery } from "@tanstack/react-query";
import { Link } from "react-router";

import { datasetsQuery } from "@/api/datasets";
import { sessionQuery } from "@/api/session";
import type { Dataset } from "@/api/types";
import { CopyButton } from "@/components/copy-button";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { DeleteButton } from "@/components/delete-button";
import { EmptyState } from "@/components/empty-state";
import { UploadIcon } from "@/components/icons";
import { Moment } from "@/components/moment";
import { Page } from "@/components/page";
import { Panel } from "@/components/panel";
import { ProblemNotice } from "@/components/problem-notice";
import { DeletedPanel } from "@/components/deleted-panel";
import { PreparationPill } from "@/features/datasets/components/preparation-pill";
import { ReportPill } from "@/features/datasets/components/report-pill";
import { UploadDialog } from "@/features/datasets/components/upload-dialog";
import { formatOf, labelOf } from "@/features/datasets/lib/formats";
import { bytes, count } from "@/lib/format";

const COLUMNS: Column<Dataset>[] = [
  {
    name: "Name",
    cell: (dataset) => (
      <Anchor component={Link} to={`/datasets/${dataset.id}`} size="sm" fw={550}>
        {dataset.name}
      </Anchor>
    ),
  },
  { name: "Version", end: true, cell: (dataset) => (dataset.origin === "sealed" ? dataset.version : "-") },
  {
    name: "Source in a spec",
    cell: (dataset) => (
      <>
        <span className="mono">{dataset.spec_source}</span>{" "}
        <CopyButton value={dataset.spec_source} label={`Copy the source of ${dataset.name}`} />
      </>
    ),
  },
  { name: "Team", cell: (dataset) => dataset.team.name },
  { name: "Format", quiet: true, cell: (dataset) => formatOf(dataset) },
  { name: "Documents", end: true, cell: (dataset) => count(dataset.documents) },
  { name: "Size", end: true, cell: (dataset) => (dataset.origin === "sealed" ? bytes(dataset.size_bytes) : "-") },
  { name: "State", cell: (dataset) => <PreparationPill preparation={dataset.preparation} /> },
  { name: "Data report", cell: (dataset) => <ReportPill report={dataset.report} /> },
  { name: "Created", end: true, quiet: true, cell: (dataset) => <Moment time={dataset.created_at} /> },
  {
    name: "(Delete)",
    end: true,
    cell: (dataset) =>
      dataset.origin === "sealed" ? (
        <DeleteButton collection="datasets" id={dataset.id} name={labelOf(dataset)} />
      ) : null,
  },
];

export function DatasetsPage() {
  const datasets = useQuery(datasetsQuery());
  const session = useQuery(sessionQuery());
  const [uploading, { open, close }] = useDisclosure(false);
  const upload = (
    <Button leftSection={<UploadIcon size={16} />} onClick={open}>
      Upload
    </Button>
  );
  return (
    <Page
      title="Datasets"
      lead={
        <>
          Text for training. <code className="mono">builtin:python-stdlib</code> is always there.
        </>
      }
      actions={upload}
    >
      {datasets.error ? <ProblemNotice error={datasets.error} onRetry={() => void datasets.refetch()} /> : null}
      {datasets.data ? (
        <Panel flush>
          {datasets.data.items.length > 0 ? (
            <DataTable label="Datasets" rows={datasets.data.items} columns={COLUMNS} rowKey={(one) => one.id} />
          ) : (
            <EmptyState title="Nothing uploaded yet">
              Upload plain text, JSON lines with text or conversations, or parquet. It is stored encrypted with the
              team's key.
            </EmptyState>
          )}
        </Panel>
      ) : null}
      <DeletedPanel />
      <UploadDialog
        opened={uploading}
        teams={session.data?.teams ?? []}
        known={datasets.data?.items ?? []}
        onClose={close}
      />
    </Page>
  );
}
