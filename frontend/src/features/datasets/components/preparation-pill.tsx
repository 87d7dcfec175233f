import type { Dataset } from "@/api/types";
import { Pill } from "@/components/pill";
import { PREPARATION } from "@/features/datasets/lib/formats";

/** Whether a data set is tokenised. */
export function PreparationPill({ preparation }: { preparation: Dataset["preparation"] }) {
  const { label, tone } = PREPARATION[preparation.state];
  return <Pill tone={tone}>{label}</Pill>;
}
