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
    expect(screen.queryByText(/Saved at least every/)).toBeNull();
  });

  it("shows the interval of checkpoints that the job has chosen, and what from", async () => {
    server.answer("GET /jobs/{job_id}/artifacts", page());
    server.answer("GET /jobs/{job_id}/profiles", page());
    server.answer("GET /jobs/{job_id}/checkpoints", page(checkpoint(20)));
    server.answer("GET /jobs/{job_id}/goodput", {
      currency: "EUR",
      slot_seconds: 0,
      goodput: null,
      cost: 0,
      refunded: 0,
      charged: 0,
      categories: [],
      attempts: [],
      interruptions: [],
      checkpoint_interval: {
        minutes: 37.25,
        stall_seconds: 0.5,
        slowdown_seconds: 1.5,
        mean_hours_between_failures: 263,
        chosen_at: "2026-01-02T03:04:05Z",
      },
    });
    render(<OutputsTab job={job({ resolved_spec: { checkpoint: { every_minutes: "auto" } } })} />);
    expect((await screen.findByText(/Saved at least every/)).textContent).toBe(
      "Saved at least every 37m 15s, chosen automatically: a save costs 2.0 s of training, and a failure is expected every 10d 23h.",
    );
  });
});
