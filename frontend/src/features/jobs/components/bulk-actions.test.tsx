import { screen, waitFor, within } from "@testing-library/react";
import { describe, expect, it, vi } from "vitest";

import { BulkActions } from "@/features/jobs/components/bulk-actions";
import { jobSummary } from "@/testing/documents";
import { render } from "@/testing/render";
import { server } from "@/testing/server";

const CANCEL = "POST /jobs:cancel";
const PROBLEM = {
  type: "urn:athanor:error:job_final", title: "Conflict", status: 409, code: "job_final", detail: "it has ended",
  remedy: "", request_id: "req_1",
};

describe("actions on several jobs", () => {
  it("cancels after a confirmation, and says what was refused", async () => {
    const onDone = vi.fn();
    server.answer(CANCEL, {
      items: [
        { id: "job_1", status: 202, job: jobSummary(), problem: null },
        { id: "job_2", status: 409, job: null, problem: PROBLEM },
      ],
    });
    const { user } = render(<BulkActions ids={["job_1", "job_2"]} onDone={onDone} />);
    await user.click(screen.getByRole("button", { name: "Cancel 2 jobs" }));
    expect(server.calls(CANCEL)).toHaveLength(0);
    await user.click(within(await screen.findByRole("dialog")).getByRole("button", { name: "Cancel 2 jobs" }));
    await waitFor(() => expect(onDone).toHaveBeenCalledOnce());
    expect(server.calls(CANCEL)[0]?.json).toEqual({ ids: ["job_1", "job_2"] });
    expect(await screen.findByText("1 job is being cancelled.")).toBeTruthy();
    expect(await screen.findByText("job_2: it has ended")).toBeTruthy();
  });

  it("pauses directly, and compares only several", async () => {
    const onDone = vi.fn();
    server.answer("POST /jobs:pause", { items: [{ id: "job_1", status: 202, job: jobSummary(), problem: null }] });
    const { user } = render(<BulkActions ids={["job_1"]} onDone={onDone} />);
    expect(screen.queryByRole("link")).toBeNull();
    await user.click(screen.getByRole("button", { name: "Pause 1 job" }));
    await waitFor(() => expect(onDone).toHaveBeenCalledOnce());
  });
});
