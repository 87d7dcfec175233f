import { useQuery } from "@tanstack/react-query";

import { request } from "@/api/client";
import type { Job, JobCost } from "@/api/types";
import { FiguresTable } from "@/components/figures-table";
import { Panel } from "@/components/panel";
import { duration } from "@/lib/format";
import { isFinal } from "@/lib/status";

const POLL_MS = 30_000;

const money = (micro: number, currency: string) =>
  `${(micro / 1e6).toLocaleString("en-GB", { maximumFractionDigits: 2 })} ${currency}`;
const kilograms = (milligrams: number) =>
  `${(milligrams / 1e6).toLocaleString("en-GB", { maximumFractionDigits: 3 })} kg`;

/** Usage and cost to date; refunds for faults and savings by waiting separately. */
export function CostPanel({ job }: { job: Job }) {
  const cost = useQuery({
    queryKey: ["job-cost", job.id],
    queryFn: ({ signal }) => request<JobCost>(`/jobs/${encodeURIComponent(job.id)}/cost`, { signal }),
    refetchInterval: isFinal(job.status) ? false : POLL_MS,
  });
  const found = cost.data;
  if (found === undefined || found.slot_seconds === 0) return null;
  const rows: [string, string][] = [
    ["Slot time", duration(found.slot_seconds)],
    ["Charged", money(found.charged, found.currency)],
  ];
  if (found.fault_slot_seconds > 0) {
    rows.push(["Lost to faults", `${duration(found.fault_slot_seconds)}, ${money(found.fault_cost, found.currency)}`]);
  }
  if (found.milligrams > 0) rows.push(["CO₂", kilograms(found.milligrams)]);
  if (found.has_ceiling) {
    const carbon = found.milligrams > 0 ? `, ${kilograms(found.saved_milligrams)} CO₂` : "";
    rows.push(["Saved by waiting", `${money(found.saved_cost, found.currency)}${carbon}`]);
  }
  return (
    <Panel title="Cost" flush>
      <FiguresTable label="Cost" rows={rows} />
    </Panel>
  );
}
