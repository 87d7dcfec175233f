import { Progress, Stack, Text } from "@mantine/core";

import type { Cluster } from "@/api/types";

/** Used and free slots, a bar for each accelerator. */
export function CapacityLine({ cluster }: { cluster: Pick<Cluster, "capacity" | "name"> }) {
  if (cluster.capacity.length === 0) return <Text size="sm">–</Text>;
  return (
    <Stack gap={6} miw={130}>
      {cluster.capacity.map((row) => (
        <div key={row.accelerator}>
          <Text size="sm" className="numeric">
            {row.slots_used} of {row.slots} {row.accelerator || "slots"}
          </Text>
          <Progress
            size="xs"
            value={row.slots === 0 ? 0 : (100 * row.slots_used) / row.slots}
            aria-label={`${row.accelerator || "slots"} used on ${cluster.name}`}
          />
        </div>
      ))}
    </Stack>
  );
}
