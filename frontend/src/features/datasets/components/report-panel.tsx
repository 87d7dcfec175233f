import { Anchor, Button, Group, NumberInput, SimpleGrid, Stack, Text, Title } from "@mantine/core";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { Link } from "react-router";

import { datasetsKey, reportOnDataset, reportQuery } from "@/api/datasets";
import { jobQuery } from "@/api/jobs";
import type { DataReport, DatasetDetail } from "@/api/types";
import { CopyButton } from "@/components/copy-button";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { EmptyState } from "@/components/empty-state";
import { Moment } from "@/components/moment";
import { Notice } from "@/components/notice";
import { Panel } from "@/components/panel";
import { Pill } from "@/components/pill";
import { ProblemNotice } from "@/components/problem-notice";
import { LengthHistogram } from "@/features/datasets/components/length-histogram";
import { ReportPill } from "@/features/datasets/components/report-pill";
import { TokenPreview } from "@/features/datasets/components/token-preview";
import { bytes, count, percent } from "@/lib/format";
import type { Tone } from "@/lib/status";
import { isFinal } from "@/lib/status";

type Content = DataReport["report"];
type SourceReport = Content["sources"][number];
type Finding = SourceReport["findings"][number];

const DEFAULT_LENGTH = 1024;
const TONES: Record<Finding["severity"], Tone> = { critical: "bad", warning: "waiting", info: "muted" };

const FINDINGS: Column<Finding>[] = [
  { name: "Severity", cell: (finding) => <Pill tone={TONES[finding.severity]}>{finding.severity}</Pill> },
  {
    name: "Finding",
    cell: (finding) => (
      <>
        {finding.title}{" "}
        <Text span size="xs" c="dimmed" className="mono">
          {finding.kind}
        </Text>
      </>
    ),
  },
  { name: "Rows", end: true, cell: (finding) => count(finding.count) },
  { name: "Share", end: true, cell: (finding) => percent(finding.share) },
  {
    name: "First places",
    cell: (finding) =>
      finding.places.map((place, number) => (
        <div key={number}>
          <span className="mono">{place.row > 0 ? `${place.object}:${place.row}` : place.object}</span> {place.detail}
        </div>
      )),
  },
  { name: "What to do", quiet: true, cell: (finding) => finding.remedy },
];

function Figure({ name, value }: { name: string; value: string }) {
  return (
    <div>
      <Text size="xs" c="dimmed">
        {name}
      </Text>
      <Text size="sm">{value}</Text>
    </div>
  );
}

function Figures({ source }: { source: SourceReport }) {
  const splits = Object.values(source.splits);
  const tokens = splits.reduce((sum, split) => sum + split.tokens, 0);
  const learned = splits.reduce((sum, split) => sum + split.learned_tokens, 0);
  const { lengths, packing, pairs } = source;
  return (
    <SimpleGrid cols={{ base: 2, sm: 3, lg: 4 }}>
      <Figure name="Read" value={`${bytes(source.read_bytes)}, ${count(source.rows)} rows`} />
      <Figure
        name="Documents to train on"
        value={`${count(source.splits["train"]?.documents)} of ${count(splits.reduce((sum, one) => sum + one.documents, 0))}`}
      />
      <Figure name="Tokens" value={`${count(tokens)}, vocabulary ${count(source.vocab_size)}`} />
      <Figure name="Learned tokens" value={tokens > 0 ? percent(learned / tokens) : "-"} />
      <Figure name="Mean and longest document" value={`${count(Math.round(lengths.mean))} and ${count(lengths.longest)} tokens`} />
      <Figure
        name="Longer than a sequence"
        value={`${count(lengths.cut_documents)} ${lengths.cut_documents === 1 ? "document" : "documents"}, ${count(lengths.lost_tokens)} tokens not trained on`}
      />
      <Figure
        name="Packed sequences"
        value={`${count(packing.documents)} instead of ${count(packing.alone)}, ${percent(packing.padding)} padding`}
      />
      {pairs ? (
        <Figure
          name="Chosen and rejected answers"
          value={`${count(Math.round(pairs.chosen_mean))} and ${count(Math.round(pairs.rejected_mean))} tokens on average, the chosen one longer in ${percent(pairs.chosen_longer)}`}
        />
      ) : null}
      <Figure
        name="Letters"
        value={Object.entries(source.scripts).map(([script, share]) => `${script} ${percent(share)}`).join(", ") || "none"}
      />
    </SimpleGrid>
  );
}

function Source({ source, content }: { source: SourceReport; content: Content }) {
  return (
    <Stack gap="md">
      <Figures source={source} />
      {source.findings.length > 0 ? (
        <DataTable label="Findings" rows={source.findings} columns={FINDINGS} rowKey={(finding) => finding.kind} />
      ) : (
        <Text size="sm">No findings.</Text>
      )}
      <div>
        <Title order={3} size="h5" mb="xs">
          Lengths, against sequences of {count(content.sequence_length)} tokens
        </Title>
        <LengthHistogram lengths={source.lengths} sequenceLength={content.sequence_length} />
      </div>
      {source.preview.length > 0 ? (
        <div>
          <Title order={3} size="h5" mb="xs">
            As the model sees it
          </Title>
          <TokenPreview documents={source.preview} />
        </div>
      ) : null}
    </Stack>
  );
}

function Report({ datasetId, job }: { datasetId: string; job: string }) {
  const read = useQuery(reportQuery(datasetId, job));
  if (read.error) {
    return <ProblemNotice error={read.error} onRetry={() => void read.refetch()} />;
  }
  if (read.data === undefined) {
    return null;
  }
  const { report, digest, job_id, created_at } = read.data;
  return (
    <Stack gap="lg">
      <Text size="sm" component="div">
        Made by{" "}
        <Anchor component={Link} to={`/jobs/${job_id}`} size="sm">
          a job
        </Anchor>{" "}
        <Moment time={created_at} />. Digest <span className="mono">{digest.slice(0, 12)}…</span>{" "}
        <CopyButton value={digest} label="Copy the digest of the report" />
      </Text>
      {report.sources.map((source, number) => (
        <Source key={number} source={source} content={report} />
      ))}
    </Stack>
  );
}

/** The job that makes a report, until it has ended; then the data set is read again. */
function Making({ jobId }: { jobId: string }) {
  const client = useQueryClient();
  const job = useQuery(jobQuery(jobId));
  const status = job.data?.status;
  const isOver = status !== undefined && isFinal(status);
  useEffect(() => {
    if (isOver) void client.invalidateQueries({ queryKey: datasetsKey });
  }, [isOver, client]);
  if (status === "succeeded") return null;
  return (
    <Notice tone={isOver ? "bad" : "active"}>
      <p>
        <Anchor component={Link} to={`/jobs/${jobId}`} size="sm">
          A job
        </Anchor>{" "}
        {isOver ? `made no report: it is ${status}. ${job.data?.reason?.message ?? ""}` : "makes a report."}
      </p>
    </Notice>
  );
}

/** The newest data report of a data set, and the job that makes another one. */
export function ReportPanel({ dataset }: { dataset: DatasetDetail }) {
  const [length, setLength] = useState<number | string>(DEFAULT_LENGTH);
  const make = useMutation({ mutationFn: () => reportOnDataset(dataset, Number(length)) });
  const tools = (
    <Group gap="xs">
      {dataset.report ? <ReportPill report={dataset.report} /> : null}
      <NumberInput
        size="xs"
        w={110}
        aria-label="Sequence length in tokens"
        value={length}
        onChange={setLength}
        min={8}
        max={1_048_576}
        allowDecimal={false}
      />
      <Button
        size="compact-sm"
        variant="default"
        loading={make.isPending}
        disabled={Number(length) < 8}
        onClick={() => make.mutate()}
      >
        Make report
      </Button>
    </Group>
  );
  // The report reads texts, conversations and pairs.
  const isReadable = dataset.format !== "unpaired";
  return (
    <Panel title="Data report" tools={isReadable ? tools : null}>
      {make.error ? <ProblemNotice error={make.error} /> : null}
      {make.data ? <Making jobId={make.data.id} /> : null}
      {dataset.report ? (
        <Report datasetId={dataset.id} job={dataset.report.job_id} />
      ) : (
        <EmptyState title="No report">
          {isReadable
            ? "A report shows what a model would see of the data, and what is wrong with it. Enter the sequence length of your training and make one."
            : "Reports read texts, conversations and pairs, not answers with a label. A run checks each line before its first step."}
        </EmptyState>
      )}
    </Panel>
  );
}
