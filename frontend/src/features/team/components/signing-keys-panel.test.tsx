import { screen, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { describe, expect, it } from "vitest";

import type { SigningKey } from "@/api/types";
import { SigningKeysPanel } from "@/features/team/components/signing-keys-panel";
import { page } from "@/testing/documents";
import { render } from "@/testing/render";
import { server } from "@/testing/server";

function key(part: Partial<SigningKey> = {}): SigningKey {
  return {
    id: "sgk_1",
    state: "active",
    fingerprint: "5d".repeat(32),
    public_key: "-----BEGIN PUBLIC KEY-----\n",
    created_at: "2026-01-02T03:04:05Z",
    retired_at: null,
    revoked_at: null,
    revocation_reason: "",
    revoked_by: null,
    ...part,
  };
}

describe("signing keys of a team", () => {
  it("shows each key with its state, and lets an administrator revoke one with a reason", async () => {
    const revoked = key({ id: "sgk_0", fingerprint: "ab".repeat(32), state: "revoked", revocation_reason: "it leaked" });
    server.answer("GET /teams/{team_id}/signing-keys", page(key(), revoked));
    server.answer("POST /signing-keys/{signing_key_id}:revoke", key({ state: "revoked" }));
    render(<SigningKeysPanel teamId="team_1" manages />);
    expect(await screen.findByText("it leaked")).toBeTruthy();
    expect(screen.queryByRole("button", { name: /Revoke the key abab/ })).toBeNull();
    await userEvent.click(screen.getByRole("button", { name: "Revoke the key 5d5d5d5d5d5d5d5d" }));
    const dialog = await screen.findByRole("dialog");
    await userEvent.type(within(dialog).getByLabelText("Reason"), "a laptop was lost");
    await userEvent.click(within(dialog).getByRole("button", { name: "Revoke" }));
    const [call] = server.calls("POST /signing-keys/{signing_key_id}:revoke");
    expect(call?.json).toEqual({ reason: "a laptop was lost" });
  });

  it("lets an administrator rotate the key, after a confirmation, and no one else", async () => {
    server.answer("GET /teams/{team_id}/signing-keys", page(key()));
    server.answer("POST /teams/{team_id}/signing-keys:rotate", key({ id: "sgk_2" }));
    const { unmount } = render(<SigningKeysPanel teamId="team_1" manages />);
    await userEvent.click(await screen.findByRole("button", { name: "Rotate" }));
    const dialog = await screen.findByRole("dialog");
    await userEvent.click(within(dialog).getByRole("button", { name: "Rotate" }));
    expect(server.calls("POST /teams/{team_id}/signing-keys:rotate")).toHaveLength(1);
    unmount();
    render(<SigningKeysPanel teamId="team_1" manages={false} />);
    expect(await screen.findByText("Active")).toBeTruthy();
    expect(screen.queryByRole("button", { name: "Rotate" })).toBeNull();
    expect(screen.queryByRole("button", { name: /^Revoke/ })).toBeNull();
  });
});
