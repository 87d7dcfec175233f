import { screen, waitFor, within } from "@testing-library/react";
import { describe, expect, it } from "vitest";

import { DatasetPage } from "@/features/datasets/components/dataset-page";
import { dataset, inspection } from "@/testing/dataset-documents";
import { job, jobSummary, page } from "@/testing/documents";
import { render } from "@/testing/render";
import { server } from "@/testing/server";

const FORM = {
  recipe: "r1",
  fingerprint: "cd".repeat(32),
  vocab_size: 2048,
  train_tokens: 9123,
  validation_tokens: 180,
  documents: 2,
  size_bytes: 4096,
  job_id: "job_9",
  created_at: "2026-01-02T03:04:05Z",
};

function open() {
  return render(<DatasetPage />, { at: "/datasets/dset_1", path: "/datasets/:datasetId" });
}

describe("data set page", () => {
  it("shows the rows, the tokenised forms and the jobs that read it", async () => {
    server.answer("GET /datasets/{dataset_id}", dataset({ tokenised_forms: [FORM], preparation: { state: "ready", job: null, tokens: 9180 } }));
    server.answer("GET /datasets/{dataset_id}/preview", inspection({ rows: ["the first line"] }));
    server.answer("GET /datasets", page());
    server.answer("GET /jobs", page(jobSummary({ name: "tuned" })));
    open();
    expect(await screen.findByText("the first line")).toBeTruthy();
    const forms = screen.getByRole("table", { name: "Tokenised forms" });
    expect(within(forms).getByText("9.12k")).toBeTruthy();
    expect(await screen.findByRole("link", { name: "tuned" })).toBeTruthy();
    expect(server.calls("GET /jobs")[0]?.query["dataset"]).toBe("dset_1");
    expect(screen.getAllByText("Tokenised")[0]).toBeTruthy();
  });

  it("says why tokenising failed, and tokenises again", async () => {
    const reason = { code: "data_error", message: "Line 3 has no text.", remedy: "Correct it.", blame: "user", runbook: "" };
    const failed = { id: "job_9", name: "prepare-chats", status: "failed" as const, reason };
    server.answer("GET /datasets/{dataset_id}", dataset({ preparation: { state: "failed", job: failed, tokens: null } }));
    server.answer("GET /datasets/{dataset_id}/preview", inspection());
    server.answer("GET /datasets", page());
    server.answer("GET /jobs", page());
    server.answer("POST /jobs", job());
    const { user } = open();
    expect(await screen.findByText(/Line 3 has no text\. Correct it\./)).toBeTruthy();
    await user.click(screen.getByRole("button", { name: "Tokenise" }));
    await waitFor(() => expect(server.calls("POST /jobs")).toHaveLength(1));
    expect(server.calls("POST /jobs")[0]?.json).toMatchObject({ team: "red", prepare: { data: { source: "dataset:chats@1" } } });
  });

  it("discards the tokenised forms after a confirmation", async () => {
    server.answer("GET /datasets/{dataset_id}", dataset({ tokenised_forms: [FORM] }));
    server.answer("GET /datasets/{dataset_id}/preview", inspection());
    server.answer("GET /datasets", page());
    server.answer("GET /jobs", page());
    server.answer("DELETE /datasets/{dataset_id}/preparations", { forgotten: 1 });
    const { user } = open();
    await user.click(await screen.findByRole("button", { name: "Discard" }));
    const dialog = await screen.findByRole("dialog");
    expect(server.calls("DELETE /datasets/{dataset_id}/preparations")).toHaveLength(0);
    await user.click(within(dialog).getByRole("button", { name: "Discard" }));
    expect(await screen.findByText("1 tokenised form discarded.")).toBeTruthy();
  });
});
