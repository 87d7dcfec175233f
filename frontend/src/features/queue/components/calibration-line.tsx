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
        ? "Not enough data yet to judge these estimates."
        : `Of the last ${data.judged} jobs with a start estimate, ${percent(data.by_p50)} had started by then ` +
          `(half would be perfect) and ${percent(data.by_p90)} by the later time (nine of ten would be); ` +
          `the median error was ${duration(data.median_error_seconds)}.`}
    </Text>
  );
}
