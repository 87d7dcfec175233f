import type { DatasetDetail, Inspection } from "@/api/types";

export function dataset(part: Partial<DatasetDetail> = {}): DatasetDetail {
  return {
    id: "dset_1",
    team: { id: "team_1", name: "red" },
    name: "chats",
    version: 1,
    aliases: [],
    spec_source: "dataset:chats@1",
    origin: "sealed",
    format: "chat",
    text_field: "messages",
    fields_with_text: [],
    size_bytes: 2048,
    documents: 2,
    preparation: { state: "none", job: null, tokens: null },
    report: null,
    created_at: "2026-01-02T03:04:05Z",
    created_by: "ada",
    digest: "ab".repeat(32),
    files: [{ path: "chats.jsonl", size_bytes: 2048 }],
    tokenised_forms: [],
    ...part,
  };
}

export function inspection(part: Partial<Inspection> = {}): Inspection {
  return { format: "text", text_field: "", fields_with_text: null, rows: ["a line"], documents: null, note: "", ...part };
}
