import { screen, waitFor, within } from "@testing-library/react";
import { describe, expect, it } from "vitest";

import { InvitationsPanel } from "@/features/team/components/invitations-panel";
import { invitation, page } from "@/testing/documents";
import { render } from "@/testing/render";
import { refuse, server } from "@/testing/server";

const LIST = "GET /teams/{team_id}/invitations";
const LINK = "POST /teams/{team_id}/invitations";
const OFFER = "POST /teams/{team_id}/members";

async function openForm() {
  server.answer(LIST, page());
  const { user } = render(<InvitationsPanel teamId="team_1" />);
  await user.click(screen.getByRole("button", { name: "Invite a member" }));
  return { user, dialog: within(await screen.findByRole("dialog")) };
}

describe("team invitations", () => {
  it("shows the state of each, and offers to revoke open ones only", async () => {
    const past = "2026-01-01T00:00:00Z";
    server.answer(
      LIST,
      page(
        invitation({ id: "inv_1", note: "open one" }),
        invitation({ id: "inv_2", accepted_at: past, accepted_by: "bob" }),
        invitation({ id: "inv_3", declined_at: past, username: "cy" }),
        invitation({ id: "inv_4", revoked_at: past }),
        invitation({ id: "inv_5", expires_at: past }),
      ),
    );
    render(<InvitationsPanel teamId="team_1" />);
    const rows = within(await screen.findByRole("table", { name: "Invitations" })).getAllByRole("row").slice(1);
    const states = rows.map((row) => within(row).getAllByRole("cell")[2]?.textContent);
    expect(states).toEqual(["Open", "Accepted by bob", "Declined", "Revoked", "Expired"]);
    expect(rows.map((row) => within(row).queryByRole("button") !== null)).toEqual([true, false, false, false, false]);
  });

  it("makes a link for a role with a note, and shows it once", async () => {
    const { user, dialog } = await openForm();
    server.answer(LINK, { ...invitation(), token: "t", url: "https://x/invitation#t" });
    await user.type(dialog.getByLabelText("Note on the link"), "for bob");
    await user.selectOptions(dialog.getByLabelText("Role"), "viewer");
    await user.click(dialog.getByRole("button", { name: "Invite" }));
    expect(await dialog.findByText("https://x/invitation#t")).toBeTruthy();
    expect(server.calls(LINK)[0]?.json).toEqual({ role: "viewer", note: "for bob" });
    await user.click(dialog.getByRole("button", { name: "Done" }));
    await waitFor(() => expect(screen.queryByRole("dialog")).toBeNull());
    await user.click(screen.getByRole("button", { name: "Invite a member" }));
    expect(await screen.findByLabelText("Username")).toBeTruthy();
    expect(screen.queryByText("https://x/invitation#t")).toBeNull();
  });

  it("offers the membership to a user that is named, without a link", async () => {
    const { user, dialog } = await openForm();
    server.answer(OFFER, invitation({ username: "bob" }));
    await user.type(dialog.getByLabelText("Username"), "bob");
    await user.click(dialog.getByRole("button", { name: "Invite" }));
    await waitFor(() => expect(screen.queryByRole("dialog")).toBeNull());
    expect(server.calls(OFFER)[0]?.json).toEqual({ username: "bob", role: "member" });
  });

  it("stays open with what was typed when the user is not there", async () => {
    const { user, dialog } = await openForm();
    server.answer(OFFER, refuse(404, { code: "user_not_found", detail: "no such user" }));
    await user.type(dialog.getByLabelText("Username"), "nobody");
    await user.click(dialog.getByRole("button", { name: "Invite" }));
    expect((await dialog.findByRole("alert")).textContent).toContain("No such user");
    expect(dialog.getByLabelText("Username")).toHaveProperty("value", "nobody");
  });

  it("reads the list again after a revocation", async () => {
    server.answer(LIST, page(invitation({ id: "inv_9" })), page());
    server.answer("DELETE /invitations/{invitation_id}", null);
    const { user } = render(<InvitationsPanel teamId="team_1" />);
    await user.click(await screen.findByRole("button", { name: "Revoke" }));
    await waitFor(() => expect(screen.queryByRole("table")).toBeNull());
    expect(server.calls("DELETE /invitations/{invitation_id}")[0]?.path).toBe("/api/v1/invitations/inv_9");
  });
});
