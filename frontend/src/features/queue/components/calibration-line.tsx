import { Text } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";

import { calibrationQuery } from "@/features/queue/api/queue";
import { duration, percent } from "@/lib/format";

/** How far the expected starts on this page can be trusted. */
export function CalibrationLine() {
  const { data } = useQuery(calibrationQuery());
  if (!data) return null;
  return (
    <Text size="sm" c="dimmed">
      {data.by_p50 === null || data.by_p90 === null
        ? "No job that was told its start has started yet, so nobody knows how good these times are."
        : `Of the last ${data.judged} jobs that were told their start, ${percent(data.by_p50)} had started by then ` +
          `(half would be perfect) and ${percent(data.by_p90)} by the later time (nine of ten would be); ` +
          `the middle error was ${duration(data.median_error_seconds)}.`}
    </Text>
  );
}
