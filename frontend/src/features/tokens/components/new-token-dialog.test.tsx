import { screen, waitFor } from "@testing-library/react";
import { useState } from "react";
import { describe, expect, it } from "vitest";

import type { NewToken } from "@/api/types";
import { NewTokenDialog } from "@/features/tokens/components/new-token-dialog";
import { session } from "@/testing/documents";
import { render } from "@/testing/render";
import { cut, held, refuse, server } from "@/testing/server";

const CREATE = "POST /tokens";
const TOKEN: NewToken = {
  id: "tok_1",
  name: "ci",
  prefix: "ath_",
  team: "red",
  scopes: ["read"],
  created_at: "2026-03-01T10:00:00Z",
  expires_at: null,
  last_used_at: null,
  revoked_at: null,
  parent: null,
  token: "ath_only-now",
};

function Opener({ teams = session().teams }) {
  const [opened, setOpened] = useState(true);
  return (
    <>
      <button type="button" onClick={() => setOpened(true)}>
        Open
      </button>
      <NewTokenDialog opened={opened} teams={teams} hasPlatformRole={false} onClose={() => setOpened(false)} />
    </>
  );
}

async function submitName(name: string) {
  const rendered = render(<Opener />);
  await rendered.user.type(screen.getByLabelText("Name"), name);
  await rendered.user.click(screen.getByRole("button", { name: "Create" }));
  return rendered;
}

describe("new token dialog", () => {
  it("sends the fields and shows the token", async () => {
    server.answer(CREATE, TOKEN);
    const { user } = render(<Opener />);
    await user.type(screen.getByLabelText("Name"), "ci");
    await user.selectOptions(screen.getByLabelText("Lifetime"), "90");
    await user.click(screen.getByRole("button", { name: "Create" }));
    expect(await screen.findByText("ath_only-now")).toBeTruthy();
    expect(server.calls(CREATE)[0]?.json).toEqual({
      name: "ci",
      team: "red",
      expires_in_days: 90,
      scopes: ["read", "submit", "artifacts", "admin"],
    });
  });

  it("makes a token that can only do what is ticked", async () => {
    server.answer(CREATE, TOKEN);
    const { user } = render(<Opener />);
    await user.type(screen.getByLabelText("Name"), "ci");
    for (const label of [/^Submit and stop/, /^Download/, /^Manage/]) await user.click(screen.getByLabelText(label));
    await user.click(screen.getByRole("button", { name: "Create" }));
    expect(await screen.findByText("ath_only-now")).toBeTruthy();
    expect(server.calls(CREATE)[0]?.json).toMatchObject({ scopes: ["read"] });
  });

  it("forgets the token with the dialog", async () => {
    server.answer(CREATE, TOKEN);
    const { user } = await submitName("ci");
    await screen.findByText("ath_only-now");
    await user.click(screen.getByRole("button", { name: "Done" }));
    await waitFor(() => expect(screen.queryByRole("dialog")).toBeNull());
    await user.click(screen.getByRole("button", { name: "Open" }));
    expect(await screen.findByLabelText("Name")).toBeTruthy();
    expect(screen.queryByText("ath_only-now")).toBeNull();
  });

  it("shows a refused field's error at the field, and what was typed stays", async () => {
    const errors = [{ pointer: "/name", code: "taken", detail: "There is one of this name." }];
    server.answer(CREATE, refuse(422, { code: "invalid", detail: "refused", errors }));
    await submitName("ci");
    const field = screen.getByLabelText<HTMLInputElement>("Name");
    await waitFor(() => expect(field.getAttribute("aria-invalid")).toBe("true"));
    const described = (field.getAttribute("aria-describedby") ?? "").split(" ");
    expect(described.map((id) => document.getElementById(id)?.textContent)).toContain("There is one of this name.");
    expect(field.value).toBe("ci");
  });

  it("repeats a call whose answer was lost with the same key, and takes a new key after an answer", async () => {
    server.answer(CREATE, cut(), refuse(500, { code: "broken" }), refuse(422, { code: "invalid" }), TOKEN);
    const { user } = await submitName("lost");
    for (const sent of [1, 2, 3]) {
      await waitFor(() => expect(server.calls(CREATE)).toHaveLength(sent));
      await screen.findByText(["offline", "broken", "invalid"][sent - 1] as string);
      await user.click(screen.getByRole("button", { name: "Create" }));
    }
    await screen.findByText("ath_only-now");
    const [first, second, third, fourth] = server.calls(CREATE).map((call) => call.headers.get("Idempotency-Key"));
    expect(first).toMatch(/^[0-9a-f]{32}$/);
    expect([second, third]).toEqual([first, first]);
    expect(fourth).not.toBe(first);
  });

  it("sends once for a double click", async () => {
    const answer = held<NewToken>();
    server.answer(CREATE, answer.answer);
    const { user } = render(<Opener />);
    await user.type(screen.getByLabelText("Name"), "twice");
    await user.dblClick(screen.getByRole("button", { name: "Create" }));
    answer.release(TOKEN);
    await screen.findByText("ath_only-now");
    expect(server.calls(CREATE)).toHaveLength(1);
  });

  it("explains to somebody without a team why there is no token to create", () => {
    render(<Opener teams={[]} />);
    expect(screen.getByText(/you are not in one yet/)).toBeTruthy();
    expect(screen.getByRole("button", { name: "Create" })).toHaveProperty("disabled", true);
  });
});
