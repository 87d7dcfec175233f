import { screen, waitFor, within } from "@testing-library/react";
import { describe, expect, it } from "vitest";

import type { DataReport } from "@/api/types";
import { ReportPanel } from "@/features/datasets/components/report-panel";
import { dataset } from "@/testing/dataset-documents";
import { job } from "@/testing/documents";
import { render } from "@/testing/render";
import { server } from "@/testing/server";

const MARKUP = '<img src="x" onerror="alert(1)">';
const SUMMARY = {
  id: "rep_1",
  digest: "ab".repeat(32),
  job_id: "job_9",
  findings: { critical: 1, warning: 0, info: 0 },
  created_at: "2026-01-02T03:04:05Z",
};
const SPLIT = { documents: 40, tokens: 1000, learned_tokens: 250, text_bytes: 4000 };
const REPORT: DataReport = {
  ...SUMMARY,
  report: {
    version: 1,
    sequence_length: 64,
    packing: "documents",
    long_documents: "truncate",
    sources: [
      {
        source: "dataset:chats",
        format: "chat",
        read_bytes: 4096,
        rows: 61,
        vocab_size: 300,
        splits: { train: SPLIT, validation: { ...SPLIT, documents: 2, tokens: 0, learned_tokens: 0 } },
        lengths: { bounds: [32, 64], counts: [30, 9, 1], longest: 90, mean: 25, cut_documents: 1, lost_tokens: 26 },
        packing: { none: 16, documents: 18, alone: 40, padding: 0.1 },
        scripts: { LATIN: 1 },
        overlap: null,
        findings: [
          {
            kind: "github_token",
            severity: "critical",
            title: "GitHub tokens",
            count: 1,
            share: 0.016,
            places: [{ object: "chats.jsonl", row: 8, detail: "ghp_..." }],
            remedy: "revoke it where it was issued",
          },
        ],
        preview: [
          {
            object: "chats.jsonl",
            row: 1,
            tokens: [
              { text: MARKUP, learned: false, hidden: false },
              { text: "Paris", learned: true, hidden: false },
              { text: "", learned: true, hidden: true },
            ],
            omitted: 7,
          },
        ],
      },
    ],
  },
};

describe("data report", () => {
  it("shows findings with places, lengths, the learned share and the tokens with their mask", async () => {
    server.answer("GET /datasets/{dataset_id}/report", REPORT);
    const { container } = render(<ReportPanel dataset={dataset({ report: SUMMARY })} />);
    const findings = await screen.findByRole("table", { name: "Findings" });
    expect(within(findings).getByText("chats.jsonl:8")).toBeTruthy();
    expect(within(findings).getByText("critical")).toBeTruthy();
    expect(screen.getByText("1 critical")).toBeTruthy();
    expect(screen.getByText("25%")).toBeTruthy();
    const lengths = screen.getByRole("table", { name: "Lengths of documents" });
    expect(within(lengths).getByRole("row", { name: /over 64 tokens 1/ })).toBeTruthy();
    const tokens = screen.getByLabelText("Tokens of chats.jsonl, row 1");
    expect(within(tokens).getByText("Paris").tagName).toBe("MARK");
    expect(within(tokens).getByText(MARKUP).tagName).toBe("SPAN");
    expect(within(tokens).getByTitle(/secret/).textContent).toBe("█");
    expect(container.querySelector("img")).toBeNull();
    expect(server.calls("GET /datasets/{dataset_id}/report")[0]?.query["job"]).toBe("job_9");
  });

  it("makes a report for the sequence length of the training", async () => {
    server.answer("POST /jobs", job({ id: "job_3", status: "queued" }));
    server.answer("GET /jobs/{job_id}", job({ id: "job_3", status: "running" }));
    const { user } = render(<ReportPanel dataset={dataset()} />);
    const length = screen.getByLabelText("Sequence length in tokens");
    await user.clear(length);
    await user.type(length, "512");
    await user.click(screen.getByRole("button", { name: "Make report" }));
    expect(await screen.findByText(/makes a report\./)).toBeTruthy();
    await waitFor(() => expect(server.calls("POST /jobs")).toHaveLength(1));
    expect(server.calls("POST /jobs")[0]?.json).toMatchObject({
      team: "red",
      prepare: { data: { source: "dataset:chats@1" }, report: { sequence_length: 512 } },
    });
  });

  it("makes a report of pairs as preference training reads them", async () => {
    server.answer("POST /jobs", job({ id: "job_3", status: "queued" }));
    server.answer("GET /jobs/{job_id}", job({ id: "job_3", status: "running" }));
    const { user } = render(<ReportPanel dataset={dataset({ format: "preference" })} />);
    await user.click(screen.getByRole("button", { name: "Make report" }));
    await waitFor(() => expect(server.calls("POST /jobs")).toHaveLength(1));
    const data = { format: "preference", packing: "documents", long_documents: "drop" };
    expect(server.calls("POST /jobs")[0]?.json).toMatchObject({ prepare: { data } });
  });

  it("shows the answers of pairs", async () => {
    const [source] = REPORT.report.sources;
    const pairs = { pairs: 40, chosen_mean: 30.4, rejected_mean: 12, chosen_longer: 0.75 };
    const preview = (source?.preview ?? []).map((document) => ({ ...document, answer: "rejected" as const }));
    const sources = [{ ...source, pairs, preview } as DataReport["report"]["sources"][number]];
    server.answer("GET /datasets/{dataset_id}/report", { ...REPORT, report: { ...REPORT.report, sources } });
    render(<ReportPanel dataset={dataset({ report: SUMMARY, format: "preference" })} />);
    expect(await screen.findByText(/30 and 12 tokens on average, the chosen one longer in 75%/)).toBeTruthy();
    expect(screen.getByLabelText("Tokens of chats.jsonl, row 1, rejected answer")).toBeTruthy();
  });

  it("has no report for answers with a label", () => {
    render(<ReportPanel dataset={dataset({ format: "unpaired" })} />);
    expect(screen.getByText(/not answers with a label/)).toBeTruthy();
    expect(screen.queryByRole("button", { name: "Make report" })).toBeNull();
  });
});
