import { screen, waitFor, within } from "@testing-library/react";
import { describe, expect, it } from "vitest";

import type { Job, JobStatus, Profile } from "@/api/types";
import { JobActions } from "@/features/job/components/job-actions";
import { deletionPreview, job, page, progress } from "@/testing/documents";
import { render } from "@/testing/render";
import { held, refuse, server } from "@/testing/server";

const CANCEL = "POST /jobs/{job_id}:cancel";

const PROFILE: Profile = {
  id: "prf_1",
  job: "job_1",
  attempt: "att_1",
  number: 1,
  status: "requested",
  reason: "",
  steps: 3,
  first_step: null,
  last_step: null,
  artifact: null,
  size_bytes: null,
  requested_by: "ada",
  created_at: "2026-03-01T10:00:00Z",
  finished_at: null,
};

function actionsOf(part: Partial<Job>): string[] {
  render(<JobActions job={job(part)} />);
  return [...screen.queryAllByRole("link"), ...screen.queryAllByRole("button")].map(
    (each) => each.getAttribute("aria-label") ?? each.textContent,
  );
}

describe("job actions", () => {
  it.each<[JobStatus, Partial<Job>, string[]]>([
    ["queued", {}, ["Fork", "Pause", "Cancel"]],
    ["running", {}, ["Fork", "Pause", "Cancel"]],
    ["running", { progress: progress(1, 10) }, ["Fork", "Profile", "Pause", "Cancel"]],
    ["paused", { desired: "pause" }, ["Fork", "Resume", "Cancel"]],
    ["stopping", { desired: "stop" }, ["Fork"]],
    ["running", { desired: "stop", progress: progress(1, 10) }, ["Fork", "Cancelling"]],
    ["failed", {}, ["Fork", "Retry", "Delete what tiny stored"]],
    ["cancelled", {}, ["Fork", "Retry", "Delete what tiny stored"]],
  ])("offers for %s with %j exactly %j", (status, part, expected) => {
    expect(actionsOf({ status, ...part })).toEqual(expected);
  });

  it("retries a failed job and opens the new one", async () => {
    server.answer("POST /jobs/{job_id}:retry", job({ id: "job_new" }));
    const { user, address } = render(<JobActions job={job({ status: "failed" })} />);
    await user.click(screen.getByRole("button", { name: "Retry" }));
    await waitFor(() => expect(address()).toBe("/jobs/job_new"));
  });

  it("offers the model of a job that succeeded", async () => {
    const model = {
      id: "art_1",
      job: "job_1",
      attempt: "att_1",
      step: 10,
      size_bytes: 100,
      files: [],
      authentic: true,
      metrics: {},
      created_at: "2026-03-01T10:00:00Z",
      team: { id: "team_1", name: "red" },
      kind: "model" as const,
      name: "model",
    };
    server.answer("GET /jobs/{job_id}/artifacts", page(model));
    render(<JobActions job={job({ status: "succeeded" })} />);
    const link = await screen.findByRole("link", { name: "Download model" });
    expect(link.getAttribute("href")).toContain("/artifacts/art_1/archive");
  });

  it("forks to the form that starts from this job", () => {
    render(<JobActions job={job({ id: "job_7" })} />);
    expect(screen.getByRole("link", { name: "Fork" }).getAttribute("href")).toBe("/jobs/new?fork=job_7");
  });

  it("cancels only after a confirmation, once", async () => {
    const answer = held<Job>();
    server.answer(CANCEL, answer.answer);
    const { user } = render(<JobActions job={job()} />);
    await user.click(screen.getByRole("button", { name: "Cancel" }));
    const dialog = await screen.findByRole("dialog", { name: "Cancel tiny?" });
    expect(server.calls(CANCEL)).toHaveLength(0);
    await user.dblClick(within(dialog).getByRole("button", { name: "Cancel the job" }));
    answer.release(job({ desired: "stop" }));
    await waitFor(() => expect(screen.queryByRole("dialog")).toBeNull());
    expect(server.calls(CANCEL)).toHaveLength(1);
  });

  it("keeps the dialog open with the reason when the cancellation is refused", async () => {
    server.answer(CANCEL, refuse(409, { code: "job_ended", detail: "the job has ended" }));
    const { user } = render(<JobActions job={job()} />);
    await user.click(screen.getByRole("button", { name: "Cancel" }));
    await user.click(await screen.findByRole("button", { name: "Cancel the job" }));
    const dialog = screen.getByRole("dialog");
    expect((await within(dialog).findByRole("alert")).textContent).toContain("The job has ended");
  });

  it("leaves the job alone when the question is answered with no", async () => {
    server.answer(CANCEL, job());
    const { user } = render(<JobActions job={job()} />);
    await user.click(screen.getByRole("button", { name: "Cancel" }));
    await user.click(await screen.findByRole("button", { name: "Keep it running" }));
    await waitFor(() => expect(screen.queryByRole("dialog")).toBeNull());
    expect(server.calls(CANCEL)).toHaveLength(0);
  });

  it.each(["pause", "resume"] as const)("sends %s and says why it was refused", async (action) => {
    const route = `POST /jobs/{job_id}:${action}` as const;
    server.answer(route, refuse(409, { code: "not_now", detail: `cannot ${action} now` }));
    const part: Partial<Job> = action === "pause" ? {} : { status: "paused", desired: "pause" };
    const { user } = render(<JobActions job={job(part)} />);
    await user.click(screen.getByRole("button", { name: action === "pause" ? "Pause" : "Resume" }));
    expect(await screen.findByText(`cannot ${action} now`)).toBeTruthy();
    expect(server.calls(route)).toHaveLength(1);
  });

  it("says where the traces of a profile will be", async () => {
    server.answer("POST /jobs/{job_id}:profile", PROFILE);
    const { user } = render(<JobActions job={job({ progress: progress(1, 10) })} />);
    await user.click(screen.getByRole("button", { name: "Profile" }));
    expect(await screen.findByText(/next 3 steps are traced/)).toBeTruthy();
  });

  it("deletes an ended job after showing what goes", async () => {
    server.answer("GET /jobs/{job_id}/deletion", deletionPreview({ kind: "job", checkpoints: 2 }));
    const { user } = render(<JobActions job={job({ status: "failed" })} />);
    await user.click(screen.getByRole("button", { name: "Delete what tiny stored" }));
    expect((await screen.findByText(/2 checkpoints/)).textContent).toContain("The job's record stays");
  });
});
