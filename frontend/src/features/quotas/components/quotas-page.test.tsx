import { screen, waitFor, within } from "@testing-library/react";
import { describe, expect, it } from "vitest";

import { QuotasPage } from "@/features/quotas/components/quotas-page";
import { page, quotaNode, quotaPreview, quotas } from "@/testing/documents";
import { render } from "@/testing/render";
import { refuse, server, withHeaders } from "@/testing/server";

const PREVIEW = "POST /quotas:preview";
const CHANGE = "PATCH /quotas";
const LABS = quotaNode("labs", { path: "org/labs", weight: 2, max_running_jobs: 4 });
const TEAM = quotaNode("red", {
  kind: "team",
  path: "org/labs/red",
  parent: "labs",
  depth: 2,
  grants: [{ accelerator: "gpu", nominal: 4, borrow_limit: null, lend_limit: 1 }],
});

function open(tree = quotas(LABS, TEAM)) {
  server.answer("GET /quotas", tree);
  server.answer("GET /quotas/usage", { days: [], nodes: [] });
  server.answer("GET /clusters", page());
  return render(<QuotasPage />);
}

async function openTeam() {
  const rendered = open();
  await rendered.user.click(await screen.findByRole("button", { name: "Change org/labs/red" }));
  return { ...rendered, dialog: within(await screen.findByRole("dialog", { name: "Team red" })) };
}

describe("quotas page", () => {
  it("shows each node with its limits", async () => {
    open();
    const table = await screen.findByRole("table", { name: "Quotas" });
    const rows = within(table).getAllByRole("row").slice(1);
    expect(rows.map((row) => within(row).getAllByRole("cell")[3]?.textContent)).toEqual([
      "none",
      "running jobs: 4, weight: 2",
      "none",
    ]);
  });

  it("offers changes only to somebody who may make them", async () => {
    open({ ...quotas(LABS), may_change: false, whole: false });
    await screen.findByRole("table", { name: "Quotas" });
    expect(screen.queryByRole("button")).toBeNull();
  });

  it("offers to delete groups without nodes below them only", async () => {
    open(quotas(LABS, TEAM, quotaNode("empty", { path: "org/empty" })));
    await screen.findByRole("table", { name: "Quotas" });
    expect(screen.getAllByRole("button", { name: /^Delete/ }).map((each) => each.getAttribute("aria-label"))).toEqual([
      "Delete org/empty",
    ]);
  });

  it("deletes a group against the version that was shown, and keeps the dialog open on a refusal", async () => {
    const { user } = open(quotas(quotaNode("empty", { path: "org/empty" })));
    server.answer(CHANGE, refuse(412, { code: "version_conflict", detail: "the tree has changed" }), quotas());
    await user.click(await screen.findByRole("button", { name: "Delete org/empty" }));
    await user.click(await screen.findByRole("button", { name: "Delete it" }));
    expect((await screen.findByRole("alert")).textContent).toContain("The tree has changed");
    await user.click(screen.getByRole("button", { name: "Delete it" }));
    await waitFor(() => expect(screen.queryByRole("dialog")).toBeNull());
    const [call] = server.calls(CHANGE);
    expect(call?.json).toEqual({ changes: [{ node: "empty", action: "delete" }] });
    expect(call?.headers.get("If-Match")).toBe('W/"7-"');
  });
});

describe("quota node dialog", () => {
  it("starts from the node's values", async () => {
    const { dialog } = await openTeam();
    expect(dialog.getByLabelText("Accelerator")).toHaveProperty("value", "gpu");
    expect(dialog.getByLabelText("Own slots")).toHaveProperty("value", "4");
    expect(dialog.getByLabelText("Borrow limit")).toHaveProperty("value", "");
    expect(dialog.getByLabelText("Lend limit")).toHaveProperty("value", "1");
    expect(dialog.getByLabelText("Belongs to")).toHaveProperty("value", "labs");
  });

  it("saves only what was previewed, against the previewed version", async () => {
    const { user, dialog } = await openTeam();
    server.answer(PREVIEW, quotaPreview({ version: 9, differences: ["red: gpu 4 -> 42"] }));
    server.answer(CHANGE, quotas());
    const save = dialog.getByRole("button", { name: "Save" });
    expect(save).toHaveProperty("disabled", true);
    await user.type(dialog.getByLabelText("Own slots"), "2");
    await user.click(dialog.getByRole("button", { name: "Preview" }));
    expect(await dialog.findByText("red: gpu 4 -> 42")).toBeTruthy();
    await user.click(save);
    await waitFor(() => expect(screen.queryByRole("dialog")).toBeNull());
    const [call] = server.calls(CHANGE);
    expect(call?.headers.get("If-Match")).toBe('W/"9-"');
    expect(call?.json).toMatchObject({
      changes: [{ node: "red", grants: { gpu: { nominal: 42, borrow_limit: null, lend_limit: 1 } } }],
    });
    expect(server.calls(PREVIEW)[0]?.json).toEqual(call?.json);
  });

  it("takes limits as people write them", async () => {
    const { user, dialog } = await openTeam();
    server.answer(PREVIEW, quotaPreview());
    await user.type(dialog.getByLabelText("Longest run"), "1d 12h");
    await user.type(dialog.getByLabelText("Stored data"), "40 GB?");
    expect(dialog.getByRole("button", { name: "Preview" })).toHaveProperty("disabled", true);
    await user.clear(dialog.getByLabelText("Stored data"));
    await user.type(dialog.getByLabelText("Stored data"), "40 GiB");
    await user.click(dialog.getByRole("button", { name: "Preview" }));
    await dialog.findByText("Nothing would change");
    expect(server.calls(PREVIEW)[0]?.json).toMatchObject({
      changes: [{ max_run_seconds: 129_600, max_storage_bytes: 40 * 2 ** 30 }],
    });
  });

  it("asks for a new preview after an edit", async () => {
    const { user, dialog } = await openTeam();
    server.answer(PREVIEW, quotaPreview({ differences: ["a difference"] }));
    await user.click(dialog.getByRole("button", { name: "Preview" }));
    await dialog.findByText("a difference");
    await user.type(dialog.getByLabelText("Running jobs"), "3");
    expect(dialog.queryByText("a difference")).toBeNull();
    expect(dialog.getByRole("button", { name: "Save" })).toHaveProperty("disabled", true);
  });

  it("names the jobs that a change would stop, and what would be over the limit", async () => {
    const { user, dialog } = await openTeam();
    server.answer(
      PREVIEW,
      quotaPreview({
        differences: ["less"],
        over: [{ node: "red", what: "slots", used: 8, allowed: 4, detail: "red uses 8 of 4 slots" }],
        preempted: [{ id: "job_x", team: "blue", slots: 2, accelerator: "gpu", why: "borrowed" }],
      }),
    );
    await user.click(dialog.getByRole("button", { name: "Preview" }));
    const seen = within(await dialog.findByRole("region", { name: "Preview" }));
    expect(seen.getByText("red uses 8 of 4 slots")).toBeTruthy();
    expect(seen.getByText("job_x of team blue, 2 gpu: borrowed")).toBeTruthy();
    expect(seen.queryByText(/No limit would be exceeded/)).toBeNull();
  });

  it("cannot save when nothing would change", async () => {
    const { user, dialog } = await openTeam();
    server.answer(PREVIEW, quotaPreview());
    await user.click(dialog.getByRole("button", { name: "Preview" }));
    await dialog.findByText("Nothing would change");
    expect(dialog.getByRole("button", { name: "Save" })).toHaveProperty("disabled", true);
  });

  it("shows a refused value's error at its field, also inside a grant", async () => {
    const { user, dialog } = await openTeam();
    const errors = [
      { pointer: "/changes/0/max_running_jobs", code: "invalid", detail: "too few" },
      { pointer: "/changes/0/grants/gpu/lend_limit", code: "invalid", detail: "more than it owns" },
    ];
    server.answer(PREVIEW, refuse(422, { code: "invalid", detail: "refused", errors }));
    await user.click(dialog.getByRole("button", { name: "Preview" }));
    await waitFor(() => expect(dialog.getByLabelText("Running jobs").getAttribute("aria-invalid")).toBe("true"));
    expect(dialog.getByLabelText("Lend limit").getAttribute("aria-invalid")).toBe("true");
    expect(dialog.getByLabelText("Own slots").getAttribute("aria-invalid")).not.toBe("true");
  });

  it("creates a group below the top with its own slots", async () => {
    const { user } = open();
    server.answer(PREVIEW, quotaPreview());
    await user.click(await screen.findByRole("button", { name: "New group" }));
    const dialog = within(await screen.findByRole("dialog", { name: "New group" }));
    await user.type(dialog.getByLabelText(/^Name/), "science");
    await user.click(dialog.getByRole("button", { name: "Add an accelerator" }));
    expect(dialog.queryByRole("textbox", { name: "Accelerator" })).toBeNull();
    await user.selectOptions(dialog.getByLabelText("Accelerator"), "gpu");
    await user.type(dialog.getByLabelText("Own slots"), "5");
    await user.click(dialog.getByRole("button", { name: "Preview" }));
    await dialog.findByText("Nothing would change");
    expect(server.calls(PREVIEW)[0]?.json).toMatchObject({
      changes: [{ action: "create", node: "science", parent: "org", grants: { gpu: { nominal: 5 } } }],
    });
  });

  it("removes a grant by sending null for it", async () => {
    const { user, dialog } = await openTeam();
    server.answer(PREVIEW, quotaPreview());
    await user.click(dialog.getByRole("button", { name: "Remove the grant of gpu" }));
    await user.click(dialog.getByRole("button", { name: "Preview" }));
    await dialog.findByText("Nothing would change");
    expect(server.calls(PREVIEW)[0]?.json).toMatchObject({ changes: [{ node: "red", grants: { gpu: null } }] });
  });
});

describe("admission settings", () => {
  it("shows times with units, sends seconds, and names the version that was read", async () => {
    const settings = { fair_share: true, half_life_seconds: 7200, age_step_seconds: 0, backfill: false, preempt: true, protected_seconds: 3600 };
    const { user } = open();
    server.answer("GET /quotas/settings", withHeaders(settings, { ETag: '"v3"' }));
    server.answer("PUT /quotas/settings", settings);
    await user.click(await screen.findByRole("button", { name: "Admission settings" }));
    const span = await screen.findByLabelText(/^Half-life/);
    expect(span).toHaveProperty("value", "2h");
    await user.clear(span);
    await user.type(span, "half a day");
    expect(screen.getByText("Write it like 90m, 2h or 1d 12h.")).toBeTruthy();
    expect(screen.getByRole("button", { name: "Save" })).toHaveProperty("disabled", true);
    await user.clear(span);
    await user.type(span, "3h 30m");
    await user.click(screen.getByLabelText(/^Backfill/));
    await user.click(screen.getByRole("button", { name: "Save" }));
    await waitFor(() => expect(screen.queryByRole("dialog")).toBeNull());
    const [call] = server.calls("PUT /quotas/settings");
    expect(call?.json).toEqual({ ...settings, half_life_seconds: 12600, backfill: true });
    expect(call?.headers.get("If-Match")).toBe('"v3"');
  });
});
