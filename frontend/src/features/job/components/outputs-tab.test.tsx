import { screen } from "@testing-library/react";
import { describe, expect, it } from "vitest";

import type { Checkpoint } from "@/api/types";
import { OutputsTab } from "@/features/job/components/outputs-tab";
import { job, page } from "@/testing/documents";
import { render } from "@/testing/render";
import { server } from "@/testing/server";

function checkpoint(step: number, part: Partial<Checkpoint> = {}): Checkpoint {
  return {
    id: `ckp_${step}`,
    job: "job_1",
    attempt: "att_1",
    step,
    size_bytes: 3 * 2 ** 20,
    files: [],
    authentic: true,
    metrics: {},
    created_at: "2026-01-02T03:04:05Z",
    world_size: 2,
    generation: 0,
    state: "intact",
    ...part,
  };
}

describe("outputs of a job", () => {
  it("offers each checkpoint as an archive, with its size, but not one that is not authentic", async () => {
    server.answer("GET /jobs/{job_id}/artifacts", page());
    server.answer("GET /jobs/{job_id}/profiles", page());
    server.answer("GET /jobs/{job_id}/checkpoints", page(checkpoint(20), checkpoint(10, { authentic: false, state: "damaged" })));
    render(<OutputsTab job={job()} />);
    const link = await screen.findByRole("link", { name: "Download the checkpoint of step 20, 3 MiB" });
    expect(link.getAttribute("href")).toBe("/api/v1/checkpoints/ckp_20/archive");
    expect(screen.queryByRole("link", { name: /checkpoint of step 10/ })).toBeNull();
    expect(screen.getByText("damaged")).toBeTruthy();
    expect(screen.getByText(/--checkpoint latest/)).toBeTruthy();
  });
});
