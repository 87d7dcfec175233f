import { Stack, Text } from "@mantine/core";

import type { PreflightReport } from "@/api/types";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { Pill } from "@/components/pill";
import type { Tone } from "@/lib/status";
import { bytes, figure, NOTHING } from "@/lib/format";
import { label } from "@/lib/status";

import classes from "./preflight-report.module.css";

type Measure = PreflightReport["measures"][number];
type Collective = PreflightReport["collectives"][number];
type Finding = PreflightReport["findings"][number];

export const RESULT_TONES: Record<Finding["severity"] | "ok", Tone> = { ok: "good", slow: "waiting", broken: "bad" };

function worst(findings: Finding[], measure: Measure): Finding["severity"] | undefined {
  const own = findings.filter((finding) => finding.measure === measure.name).map((finding) => finding.severity);
  return own.includes("broken") ? "broken" : own[0];
}

function measureColumns(findings: Finding[]): Column<Measure>[] {
  return [
    { name: "Measure", cell: (measure) => label(measure.name) },
    { name: "Median", end: true, cell: (measure) => figure(measure.median, measure.unit) },
    { name: "Lowest", end: true, cell: (measure) => figure(measure.lowest, measure.unit) },
    {
      name: "Where",
      cell: (measure) => {
        const severity = worst(findings, measure);
        return (
          <>
            <span className={classes.place}>{measure.lowest_at}</span>{" "}
            {severity ? <Pill tone={RESULT_TONES[severity]}>{label(severity)}</Pill> : null}
          </>
        );
      },
    },
    { name: "Expected", end: true, quiet: true, cell: (measure) => figure(measure.expected, measure.unit) },
  ];
}

const COLLECTIVE_COLUMNS: Column<Collective>[] = [
  { name: "Collective", cell: (row) => label(row.name) },
  { name: "Size", end: true, cell: (row) => bytes(row.bytes) },
  { name: "Time", end: true, cell: (row) => figure(row.seconds, "seconds") },
  { name: "Bus bandwidth", end: true, cell: (row) => figure(row.bus_bytes_per_second, "bytes_per_second") },
  { name: "Expected", end: true, quiet: true, cell: (row) => figure(row.expected, "bytes_per_second") },
];

/** The place at fault: nodes, or the link of a pair, which no node is blamed for. */
function culprit(finding: Finding): string {
  if (finding.nodes.length > 0) return finding.nodes.join(", ");
  return finding.because.startsWith("the link") ? "Link" : NOTHING;
}

/** What a preflight found, then each figure beside the expected one. */
export function PreflightReportView({ report }: { report: PreflightReport }) {
  const count = (number: number, name: string) => `${number} ${name}${number === 1 ? "" : "s"}`;
  return (
    <Stack gap="sm">
      <Text size="sm" className={classes.line}>
        <Pill tone={RESULT_TONES[report.result]}>{label(report.result)}</Pill> {count(report.ranks, "rank")} on{" "}
        {count(report.nodes, "node")}, {report.device}, measured in {figure(report.seconds, "seconds")}
      </Text>
      {report.findings.length > 0 ? (
        <ul className={classes.findings} aria-label="Findings">
          {report.findings.map((finding) => (
            <li key={finding.because}>
              <Pill tone={RESULT_TONES[finding.severity]}>{label(finding.severity)}</Pill>{" "}
              <strong className="mono">{culprit(finding)}</strong> {finding.because}
            </li>
          ))}
        </ul>
      ) : null}
      <DataTable
        label="Measures"
        rows={report.measures}
        columns={measureColumns(report.findings)}
        rowKey={(measure) => measure.name}
      />
      {report.collectives.length > 0 ? (
        <DataTable
          label="Collectives"
          rows={report.collectives}
          columns={COLLECTIVE_COLUMNS}
          rowKey={(row) => `${row.name} ${row.bytes}`}
        />
      ) : null}
      {report.skipped.map((each) => (
        <Text key={each} size="xs" c="dimmed">
          Not measured: {each}
        </Text>
      ))}
    </Stack>
  );
}
