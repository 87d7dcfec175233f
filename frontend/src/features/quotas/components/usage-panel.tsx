import { NativeSelect, SimpleGrid, Stack } from "@mantine/core";
import { useMemo, useState } from "react";

import type { QuotaNode, QuotaUsage } from "@/api/types";
import type { ChartLine } from "@/charts/chart-card";
import { ChartCard } from "@/charts/chart-card";

interface UsagePanelProps {
  nodes: QuotaNode[];
  usage: QuotaUsage;
}

/** Slots that a node used, day by day, beside what it had. */
export function UsagePanel({ nodes, usage }: UsagePanelProps) {
  const [chosen, setChosen] = useState("");
  const node = nodes.find((each) => each.id === chosen) ?? nodes.find((each) => each.kind === "organisation");
  const history = usage.nodes.find((each) => each.id === node?.id);
  const days = useMemo(() => usage.days.map((day) => Date.parse(day) / 1000), [usage.days]);
  if (!node || !history || history.lines.length === 0) return null;
  return (
    <Stack gap="sm">
      <NativeSelect
        label={`The last ${usage.days.length} days of`}
        w={{ base: "100%", sm: 320 }}
        value={node.id}
        data={nodes.map((each) => ({ value: each.id, label: each.path }))}
        onChange={(event) => setChosen(event.currentTarget.value)}
      />
      <SimpleGrid cols={{ base: 1, md: history.lines.length > 1 ? 2 : 1 }}>
        {history.lines.map((line) => {
          const lines: ChartLine[] = [
            { label: "used", color: "--series-2", series: { steps: days, values: line.used } },
            { label: "own", color: "--series-1", series: { steps: days, values: line.nominal } },
          ];
          return (
            <ChartCard
              key={line.accelerator}
              title={`${line.accelerator} slots a day`}
              lines={lines}
              axis="day"
              unit="plain"
              group="quota-days"
              height={190}
            />
          );
        })}
      </SimpleGrid>
    </Stack>
  );
}
