import type { Dataset } from "@/api/types";
import { Pill } from "@/components/pill";

/** The worst that the newest data report found. */
export function ReportPill({ report }: { report: Dataset["report"] }) {
  if (report === null) {
    return <Pill tone="muted">None</Pill>;
  }
  const { critical, warning } = report.findings;
  if (critical > 0) {
    return <Pill tone="bad">{critical} critical</Pill>;
  }
  if (warning > 0) {
    return <Pill tone="waiting">{warning === 1 ? "1 warning" : `${warning} warnings`}</Pill>;
  }
  return <Pill tone="good">Nothing critical</Pill>;
}
