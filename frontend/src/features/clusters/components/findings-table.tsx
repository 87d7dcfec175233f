import { Anchor, Text } from "@mantine/core";

import type { Finding } from "@/api/types";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { Pill } from "@/components/pill";
import { findingCondition, worstFirst } from "@/features/clusters/lib/condition";
import { sentence } from "@/lib/text";

const COLUMNS: Column<Finding>[] = [
  {
    name: "Result",
    cell: (finding) => {
      const condition = findingCondition(finding);
      return <Pill tone={condition.tone}>{condition.text}</Pill>;
    },
  },
  { name: "Check", cell: (finding) => <span className="mono">{finding.check}</span> },
  {
    name: "Details",
    cell: (finding) => (
      <>
        <Text size="sm" style={{ overflowWrap: "anywhere" }}>
          {sentence(finding.detail)}
        </Text>
        {finding.remedy ? (
          <Text size="sm" c="dimmed" style={{ overflowWrap: "anywhere" }}>
            {sentence(finding.remedy)}
          </Text>
        ) : null}
        {finding.runbook ? (
          <Anchor href={finding.runbook} size="sm">
            Runbook
          </Anchor>
        ) : null}
      </>
    ),
  },
];

/** Findings of a health check with their remedies, errors first. */
export function FindingsTable({ findings }: { findings: Finding[] }) {
  return (
    <DataTable label="Findings" rows={worstFirst(findings)} columns={COLUMNS} rowKey={(finding) => finding.check} />
  );
}
