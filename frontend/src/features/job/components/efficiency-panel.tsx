import { Code, Text } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";

import type { Efficiency, Job } from "@/api/types";
import { FiguresTable } from "@/components/figures-table";
import { Panel } from "@/components/panel";
import { ProblemNotice } from "@/components/problem-notice";
import { efficiencyQuery } from "@/features/job/api/queries";
import { carbonText, energyText, NOT_KNOWN } from "@/lib/energy";
import { bytes, duration, money, percent } from "@/lib/format";

type Loads = Efficiency["loads"];

const LOADS: [keyof Loads, string][] = [
  ["gpu_utilisation", "GPU utilisation"],
  ["gpu_memory", "GPU memory in use"],
  ["cpu_utilisation", "CPU utilisation"],
  ["host_memory", "Host memory in use"],
  ["gpu_power", "Power of a GPU"],
  ["host_power", "Power of a node's processors"],
];
const ADVICE: Record<Efficiency["suggestions"][number]["advice"], string> = {
  fewer_slots: "Use fewer slots",
  no_spare_nodes: "Leave out spare nodes",
  larger_micro_batch: "Use larger micro-batches",
};

/** How well the job used its slots; what is not known is not a zero. After its end, what to change. */
export function EfficiencyPanel({ job }: { job: Job }) {
  const { data, error, refetch } = useQuery(efficiencyQuery(job));
  if (error) {
    return (
      <Panel title="Efficiency">
        <ProblemNotice error={error} onRetry={() => void refetch()} />
      </Panel>
    );
  }
  if (!data || data.goodput === null) return null;
  const cost = (micro: number) => money(micro / 1e6, data.currency);
  const rows: [string, string][] = [
    ["Productive", `${percent(data.goodput)}, ${duration(data.productive_slot_seconds)}`],
    ["Idle nodes", duration(data.idle_slot_seconds)],
    ["Cost of what was not productive", cost(data.unproductive_cost)],
    ...LOADS.map(([name, title]): [string, string] => [title, loadText(name, data.loads[name])]),
    ["Peak memory of a process", memoryText(data.memory)],
    ["Energy", energyText(data.energy)],
    ["CO₂", carbonText(data.energy)],
  ];
  return (
    <Panel title="Efficiency">
      <FiguresTable label="Efficiency" rows={rows} />
      {data.suggestions.map((each) => (
        <section key={each.advice} aria-label={ADVICE[each.advice]}>
          <Text size="sm" fw={600} mt="sm">
            {ADVICE[each.advice]}: saves at most {cost(each.saving)} (estimate)
          </Text>
          <Text size="sm">{each.message}</Text>
          <Code block>{JSON.stringify(each.changes)}</Code>
        </section>
      ))}
    </Panel>
  );
}

function loadText(name: keyof Loads, load: Loads[keyof Loads]): string {
  if (load === null) return NOT_KNOWN;
  const form = (value: number) => (name.endsWith("power") ? `${Math.round(value)} W` : percent(value));
  return `mean ${form(load.mean)}, p10 ${form(load.p10)}, highest ${form(load.highest)} (${load.highest_at})`;
}

function memoryText(memory: Efficiency["memory"]): string {
  if (memory === null) return NOT_KNOWN;
  const peak = `${bytes(memory.peak_bytes)} (rank ${memory.peak_rank})`;
  if (memory.available_bytes === null || memory.headroom_bytes === null) return `${peak}, headroom not known`;
  const beyond =
    memory.headroom_bytes < 0 ? `${bytes(-memory.headroom_bytes)} above it` : `headroom ${bytes(memory.headroom_bytes)}`;
  return `${peak} of ${bytes(memory.available_bytes)}, ${beyond}`;
}
