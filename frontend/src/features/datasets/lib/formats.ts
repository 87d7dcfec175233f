import type { Dataset } from "@/api/types";
import type { Tone } from "@/lib/status";

const LABELS: Record<string, string> = {
  auto: "Several formats",
  text: "Plain text",
  jsonl: "JSON lines with text",
  chat: "Conversations",
  preference: "Preference pairs",
  unpaired: "Labelled answers",
  parquet: "Parquet",
};

export function formatLabel(format: string): string {
  return LABELS[format] ?? format;
}

/** Whether only preference training reads it: it is tokenised by the job that trains. */
export function isForPreferenceTraining(format: string): boolean {
  return format === "preference" || format === "unpaired";
}

/** What a user may choose at an upload. */
export const CHOICES = [
  { value: "auto", label: "Detect it" },
  ...["text", "jsonl", "chat", "parquet"].map((value) => ({ value, label: formatLabel(value) })),
];

/** A data set of the platform or of a bucket has one for all its files, which is not known. */
export function formatOf({ origin, format }: Pick<Dataset, "origin" | "format">): string {
  return origin === "sealed" ? formatLabel(format) : "Detected when it is read";
}

/** `books@2`: a version of an upload; the name of other data. */
export function labelOf({ name, origin, version }: Pick<Dataset, "name" | "origin" | "version">): string {
  return origin === "sealed" ? `${name}@${version}` : name;
}

type State = Dataset["preparation"]["state"];

export const PREPARATION: Record<State, { label: string; tone: Tone }> = {
  none: { label: "Not tokenised", tone: "muted" },
  running: { label: "Tokenising", tone: "active" },
  ready: { label: "Tokenised", tone: "good" },
  failed: { label: "Tokenising failed", tone: "bad" },
};
