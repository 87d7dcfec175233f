import type { JobStatus } from "@/api/types";
import { Pill } from "@/components/pill";
import { label, tone } from "@/lib/status";

export function StatusBadge({ status, large = false }: { status: JobStatus; large?: boolean }) {
  return (
    <Pill tone={tone(status)} status={status} large={large}>
      {label(status)}
    </Pill>
  );
}
