import { fireEvent, screen, waitFor, within } from "@testing-library/react";
import { describe, expect, it, vi } from "vitest";

import { Confirm } from "@/components/confirm";
import { DeleteButton } from "@/components/delete-button";
import { deletionPreview } from "@/testing/documents";
import { render } from "@/testing/render";
import { held, refuse, server } from "@/testing/server";

const PREVIEW = "GET /datasets/{dataset_id}/deletion";
const DELETE = "DELETE /datasets/{dataset_id}";

const DELETED = {
  id: "del_1",
  team: { id: "team_1", name: "red" },
  kind: "dataset" as const,
  target: "dat_1",
  name: "books",
  size_bytes: 2048,
  state: "pending" as const,
  deleted_by: "ada",
  created_at: "2026-03-01T10:00:00Z",
  purge_after: "2026-03-08T10:00:00Z",
};

async function openDialog() {
  const { user } = render(<DeleteButton collection="datasets" id="dat_1" name="books" />);
  await user.click(screen.getByRole("button", { name: "Delete books" }));
  const dialog = await screen.findByRole("dialog", { name: "Delete books?" });
  return { user, dialog, yes: within(dialog).getByRole("button", { name: "Delete" }) };
}

describe("confirm dialog", () => {
  const question = { opened: true, title: "Stop it?", yes: "Stop", no: "Continue" };

  it("calls the handler of the button that was pressed, and no other", async () => {
    const [onYes, onNo] = [vi.fn(), vi.fn()];
    const { user } = render(
      <Confirm {...question} onYes={onYes} onNo={onNo}>
        Really
      </Confirm>,
    );
    await user.click(screen.getByRole("button", { name: "Stop" }));
    expect([onYes.mock.calls.length, onNo.mock.calls.length]).toEqual([1, 0]);
    await user.click(screen.getByRole("button", { name: "Continue" }));
    expect([onYes.mock.calls.length, onNo.mock.calls.length]).toEqual([1, 1]);
  });

  it("gives the focus to the harmless button and takes Escape as no", async () => {
    const onNo = vi.fn();
    const { user } = render(
      <Confirm {...question} onYes={vi.fn()} onNo={onNo}>
        Really
      </Confirm>,
    );
    await waitFor(() => expect(document.activeElement?.textContent).toBe("Continue"));
    await user.keyboard("{Escape}");
    expect(onNo).toHaveBeenCalledOnce();
  });

  it("takes no second yes while the first is under way", () => {
    const onYes = vi.fn();
    render(
      <Confirm {...question} busy onYes={onYes} onNo={vi.fn()}>
        Really
      </Confirm>,
    );
    fireEvent.click(screen.getByRole("button", { name: "Stop" }));
    expect(onYes).not.toHaveBeenCalled();
  });
});

describe("delete button", () => {
  it("asks the server for nothing before it is pressed, and deletes nothing before it is confirmed", async () => {
    server.answer(PREVIEW, deletionPreview({ preparations: 3 }));
    server.answer(DELETE, DELETED);
    const { dialog } = await openDialog();
    expect((await within(dialog).findByText(/3 prepared copies/)).textContent).toContain("restored for 7 days");
    expect(server.calls(DELETE)).toHaveLength(0);
  });

  it("closes after the deletion and shows that it can be undone", async () => {
    server.answer(PREVIEW, deletionPreview());
    server.answer(DELETE, DELETED);
    const { user, dialog, yes } = await openDialog();
    await within(dialog).findByText(/2 KiB/);
    await user.click(yes);
    await waitFor(() => expect(screen.queryByRole("dialog")).toBeNull());
    expect(screen.getByText(/books is deleted/)).toBeTruthy();
    expect(server.calls(DELETE).map((call) => call.path)).toEqual(["/api/v1/datasets/dat_1"]);
  });

  it("sends once for a double click", async () => {
    const answer = held<typeof DELETED>();
    server.answer(PREVIEW, deletionPreview());
    server.answer(DELETE, answer.answer);
    const { user, dialog, yes } = await openDialog();
    await within(dialog).findByText(/2 KiB/);
    await user.dblClick(yes);
    answer.release(DELETED);
    await waitFor(() => expect(screen.queryByRole("dialog")).toBeNull());
    expect(server.calls(DELETE)).toHaveLength(1);
  });

  it("stays open with the reason when the deletion is refused, and can be tried again", async () => {
    server.answer(PREVIEW, deletionPreview());
    server.answer(DELETE, refuse(409, { code: "in_use", detail: "a job has just started with it" }), DELETED);
    const { user, dialog, yes } = await openDialog();
    await within(dialog).findByText(/2 KiB/);
    await user.click(yes);
    expect((await within(dialog).findByRole("alert")).textContent).toContain("A job has just started with it");
    await user.click(yes);
    await waitFor(() => expect(screen.queryByRole("dialog")).toBeNull());
    expect(server.calls(DELETE)).toHaveLength(2);
  });

  it("names the unfinished jobs that need it and cannot be confirmed", async () => {
    const blocking = { id: "job_9", name: "long-run", status: "running" };
    server.answer(PREVIEW, deletionPreview({ blocked_by: [blocking] }));
    const { dialog, yes } = await openDialog();
    await within(dialog).findByText("long-run (running)");
    expect(yes).toHaveProperty("disabled", true);
  });

  it("cannot be confirmed when the consequences are not known", async () => {
    server.answer(PREVIEW, refuse(503, { code: "unavailable", detail: "try later" }));
    const { dialog, yes } = await openDialog();
    await within(dialog).findByRole("alert");
    expect(yes).toHaveProperty("disabled", true);
  });
});
