import { screen, waitFor, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { describe, expect, it } from "vitest";

import type { Artifact, Checkpoint, ReplayedSegment } from "@/api/types";
import { OutputsTab } from "@/features/job/components/outputs-tab";
import { job, page, session } from "@/testing/documents";
import { modelVersion, registeredModel } from "@/testing/models";
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
    damage: "",
    verified_at: null,
    ...part,
  };
}

function serve(role: "admin" | "member" | "viewer", ...checkpoints: Checkpoint[]): void {
  server.answer("GET /session", session({ teams: [{ id: "team_1", name: "red", role }] }));
  server.answer("GET /jobs/{job_id}/artifacts", page());
  server.answer("GET /jobs/{job_id}/profiles", page());
  server.answer("GET /jobs/{job_id}/replays", page());
  server.answer("GET /jobs/{job_id}/checkpoints", page(...checkpoints));
  server.answer("GET /models", page(registeredModel(), registeredModel({ name: "theirs", is_shared: true })));
}

const EXPORT: Artifact = {
  id: "art_2",
  team: { id: "team_1", name: "red" },
  job: "job_1",
  attempt: "att_1",
  kind: "model",
  name: "model-final",
  step: 30,
  size_bytes: 4096,
  files: [],
  authentic: true,
  metrics: {},
  created_at: "2026-01-02T03:04:05Z",
};

describe("outputs of a job", () => {
  it("offers each checkpoint as an archive, with its size, but not one that is not authentic", async () => {
    const verified = new Date(Date.now() - 2 * 3_600_000).toISOString();
    serve("member", checkpoint(20, { verified_at: verified }), checkpoint(10, { authentic: false, state: "damaged", damage: "digest differs" }));
    render(<OutputsTab job={job()} />);
    const link = await screen.findByRole("link", { name: "Download the checkpoint of step 20, 3 MiB" });
    expect(link.getAttribute("href")).toBe("/api/v1/checkpoints/ckp_20/archive");
    expect(screen.queryByRole("link", { name: /checkpoint of step 10/ })).toBeNull();
    expect(screen.getByText("damaged")).toBeTruthy();
    expect(screen.getByText("digest differs")).toBeTruthy();
    expect(screen.getByText("2h ago")).toBeTruthy();
    expect(screen.getByText(/--checkpoint latest/)).toBeTruthy();
    expect(screen.queryByText(/Saved at least every/)).toBeNull();
    expect(screen.queryByRole("button", { name: /^Retire/ })).toBeNull();
  });

  it("shows the newest validation loss with its step, where a checkpoint records it", async () => {
    const metrics = { "evaluation/loss": 2.34567, "evaluation/step": 1500 };
    serve("member", checkpoint(1600, { metrics }), checkpoint(1500, { metrics: { "evaluation/loss": 2.5 } }), checkpoint(10));
    render(<OutputsTab job={job()} />);
    const table = await screen.findByRole("table", { name: "Checkpoints" });
    const [head, ...rows] = within(table).getAllByRole("row");
    const names = within(head as HTMLElement).getAllByRole("columnheader").map((each) => each.textContent);
    const column = names.indexOf("Newest validation loss");
    const found = rows.map((row) => within(row).getAllByRole("cell")[column]?.textContent);
    expect(found.slice(0, 2)).toEqual(["2.3457 (step 1500)", "2.5000"]);
    expect(found[2]).not.toContain("step");
  });

  it("shows the interval of checkpoints that the job has chosen, and what from", async () => {
    serve("member", checkpoint(20));
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

  it("lets an administrator change the state of a checkpoint, with a reason, and shows what follows", async () => {
    serve("admin", checkpoint(20), checkpoint(10, { state: "damaged" }), checkpoint(5, { state: "diverged" }));
    const notice = "The next start of the job resumes from the checkpoint of step 20.";
    server.answer("POST /checkpoints/{checkpoint_id}:mark_intact", { ...checkpoint(10), retired_at: null, notice });
    render(<OutputsTab job={job()} />);
    await userEvent.click(await screen.findByRole("button", { name: "Mark as intact: checkpoint of step 10" }));
    expect(screen.queryByRole("button", { name: "Mark as intact: checkpoint of step 20" })).toBeNull();
    expect(screen.queryByRole("button", { name: /Mark as .*: checkpoint of step 5$/ })).toBeNull();
    const dialog = await screen.findByRole("dialog");
    await userEvent.type(within(dialog).getByLabelText("Reason"), "restored from the backup");
    await userEvent.click(within(dialog).getByRole("button", { name: "Mark as intact" }));
    expect(await screen.findByText(notice)).toBeTruthy();
    const [call] = server.calls("POST /checkpoints/{checkpoint_id}:mark_intact");
    expect(call?.json).toEqual({ reason: "restored from the backup" });
  });

  it("registers a checkpoint by a job that exports it, on resources like those of the training", async () => {
    serve("member", checkpoint(20), checkpoint(10, { state: "damaged" }));
    const made = job({ id: "job_9", name: "export-tiny" });
    server.answer("POST /jobs", made);
    const resources = { cluster: "local", nodes: 1, processes_per_node: 2, accelerator: null, priority: "high" };
    const training = job({ project: "spring", resolved_spec: { resources } });
    const { user, address } = render(<OutputsTab job={training} />);
    await user.click(await screen.findByRole("button", { name: "Register the checkpoint of step 20" }));
    expect(screen.queryByRole("button", { name: "Register the checkpoint of step 10" })).toBeNull();
    const dialog = within(await screen.findByRole("dialog"));
    expect(dialog.getByText(/exports the checkpoint of step 20 first/)).toBeTruthy();
    await user.type(dialog.getByRole("combobox", { name: "Model" }), "bot");
    await user.type(dialog.getByLabelText("Alias"), "candidate");
    await user.click(dialog.getByRole("button", { name: "Register" }));
    await waitFor(() => expect(address()).toBe("/jobs/job_9"));
    const [call] = server.calls("POST /jobs");
    expect(call?.json).toEqual({
      version: 1,
      name: `export-${training.name}`,
      team: "red",
      project: "spring",
      resources: { cluster: "local", nodes: 1, processes_per_node: 2 },
      export: { job: "job_1", step: 20 },
      output: { register: "bot", alias: "candidate" },
    });
  });

  it("registers an export, of a new model too, and offers the names of the team's models", async () => {
    serve("member");
    server.answer("GET /jobs/{job_id}/artifacts", page(EXPORT));
    const { user, address } = render(<OutputsTab job={job()} />);
    await user.click(await screen.findByRole("button", { name: "Register model-final" }));
    const dialog = within(await screen.findByRole("dialog"));
    await user.click(dialog.getByRole("combobox", { name: "Model" }));
    expect(await screen.findByRole("option", { name: "bot" })).toBeTruthy();
    expect(screen.queryByRole("option", { name: "theirs" })).toBeNull();
    await user.type(dialog.getByRole("combobox", { name: "Model" }), "other");
    server.answer("GET /models", page());
    server.answer("POST /models", registeredModel({ id: "mdl_2", name: "other" }));
    const made = modelVersion(1, []);
    server.answer("GET /models/{model_id}/versions/{version_number}", { ...made, model: { id: "mdl_2", name: "other" } });
    await user.click(dialog.getByRole("button", { name: "Register" }));
    await waitFor(() => expect(address()).toBe("/models/mdl_2"));
    expect(server.calls("POST /models")[0]?.json).toEqual({ name: "other", team: "red", artifact: "art_2" });
    expect(await screen.findByText("other@1 is registered.")).toBeTruthy();
  });

  it("offers viewers nothing to register", async () => {
    serve("viewer", checkpoint(20));
    server.answer("GET /jobs/{job_id}/artifacts", page(EXPORT));
    render(<OutputsTab job={job()} />);
    expect(await screen.findByText("model-final")).toBeTruthy();
    expect(screen.queryByRole("button", { name: /^Register/ })).toBeNull();
    expect(server.calls("GET /models")).toEqual([]);
  });

  it("shows what replays of the job found, and why a result differs", async () => {
    serve("member", checkpoint(20));
    const found: ReplayedSegment = {
      replay: { id: "job_2", name: "replay-tiny" },
      replayed: { id: "job_1", name: "tiny" },
      number: 0,
      start: "ckp_10",
      end: "ckp_20",
      first_step: 10,
      last_step: 20,
      verdict: "differs",
      is_exact: true,
      tolerance: 0.001,
      tensors: 58,
      differing: 3,
      differences: [],
      because: "3 of 58 tensors differ, model/norm.weight the most (by 0.1 at most)",
      created_at: "2026-01-02T03:04:05Z",
    };
    server.answer("GET /jobs/{job_id}/replays", page(found));
    render(<OutputsTab job={job()} />);
    const row = (await screen.findByText("Differs")).closest("tr") as HTMLElement;
    expect(row.textContent).toContain("by replay-tiny");
    expect(row.textContent).toContain("11 to 20");
    expect(row.textContent).toContain(found.because);
    expect(within(row).getByRole("link").getAttribute("href")).toBe("/jobs/job_2");
  });
});
