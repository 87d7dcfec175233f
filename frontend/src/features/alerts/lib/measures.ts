import type { AlertRule } from "@/api/types";

interface MeasureText {
  value: AlertRule["measure"];
  label: string;
  unit: string;
  hasSeries: boolean;
}

export const MEASURES: MeasureText[] = [
  { value: "series_below", label: "A series is below", unit: "", hasSeries: true },
  { value: "series_above", label: "A series is at or above", unit: "", hasSeries: true },
  { value: "series_drop", label: "A series drops below its median by", unit: "%", hasSeries: true },
  { value: "series_spike", label: "A series spikes above its median by", unit: "%", hasSeries: true },
  { value: "no_progress", label: "A running job makes no progress for", unit: "minutes", hasSeries: false },
  { value: "queue_wait", label: "A job waits in the queue for", unit: "minutes", hasSeries: false },
  { value: "budget_used", label: "A budget is spent to", unit: "%", hasSeries: false },
  { value: "storage_used", label: "The storage limit is used to", unit: "%", hasSeries: false },
];

export const SERIES = ["throughput/mfu_causal", "throughput/tokens_per_second", "train/loss", "evaluation/loss"];

/** A rule's condition in words. */
export function conditionText(rule: AlertRule): string {
  const found = MEASURES.find((each) => each.value === rule.measure);
  const subject = (found?.label ?? rule.measure).replace("A series", rule.series || "A series");
  const hold = rule.for_seconds > 0 ? `, for ${rule.for_seconds} s` : "";
  return `${subject} ${rule.threshold}${found?.unit ? ` ${found.unit}` : ""}${hold}`;
}
