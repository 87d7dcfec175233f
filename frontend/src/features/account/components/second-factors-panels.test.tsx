import { screen, waitFor, within } from "@testing-library/react";
import { describe, expect, it } from "vitest";

import { SecondFactorsPanels } from "@/features/account/components/second-factors-panels";
import { secondFactors } from "@/testing/documents";
import { render } from "@/testing/render";
import { refuse, server } from "@/testing/server";

const FACTORS = "GET /second-factors";
const BEGIN = "POST /second-factors/authenticator-app:begin";
const CONFIRM = "POST /second-factors/authenticator-app:confirm";
const SETUP = { secret: "JBSWY3DP", uri: "otpauth://x", qr_svg: "<svg><path d='M0 0'/></svg>" };

async function openSetUp() {
  server.answer(FACTORS, secondFactors(), secondFactors({ authenticator_app_since: "2026-03-01T10:00:00Z" }));
  const { user } = render(<SecondFactorsPanels />);
  await user.click(await screen.findByRole("button", { name: "Set up" }));
  return { user, dialog: within(await screen.findByRole("dialog")) };
}

async function givePassword({ user, dialog }: Awaited<ReturnType<typeof openSetUp>>) {
  await user.type(dialog.getByLabelText(/password/i, { selector: "input" }), "secret word");
  await user.click(dialog.getByRole("button", { name: "Continue" }));
}

describe("second factors", () => {
  it("sends users of single sign-on to their organisation", async () => {
    server.answer(FACTORS, secondFactors({ has_password: false }));
    render(<SecondFactorsPanels />);
    expect(await screen.findByText(/through your organisation/)).toBeTruthy();
    expect(screen.queryByRole("button")).toBeNull();
  });

  it("asks for the password first, and stays there when it is wrong", async () => {
    const opened = await openSetUp();
    server.answer(BEGIN, refuse(403, { code: "wrong_password", detail: "this is not your password" }));
    await givePassword(opened);
    expect((await opened.dialog.findByRole("alert")).textContent).toContain("This is not your password");
    expect(server.calls(BEGIN)[0]?.json).toEqual({ current_password: "secret word" });
    expect(opened.dialog.queryByRole("img")).toBeNull();
  });

  it("shows the QR code and the key, then the recovery codes after a good code", async () => {
    const opened = await openSetUp();
    const { user, dialog } = opened;
    server.answer(BEGIN, SETUP);
    server.answer(CONFIRM, refuse(422, { code: "wrong_code", detail: "the code is wrong" }), {
      recovery_codes: ["aaaa-1111", "bbbb-2222"],
    });
    await givePassword(opened);
    const image = await dialog.findByRole("img", { name: /QR code/ });
    expect(decodeURIComponent(image.getAttribute("src") ?? "")).toContain(SETUP.qr_svg);
    expect(dialog.getByLabelText("Key")).toHaveProperty("value", "JBSWY3DP");
    await user.type(dialog.getByLabelText("Code from the app"), "000000");
    await user.click(dialog.getByRole("button", { name: "Turn on" }));
    expect((await dialog.findByRole("alert")).textContent).toContain("The code is wrong");
    await user.click(dialog.getByRole("button", { name: "Turn on" }));
    const codes = within(await dialog.findByRole("list", { name: "Recovery codes" }));
    expect(codes.getAllByRole("listitem").map((each) => each.textContent)).toEqual(["aaaa-1111", "bbbb-2222"]);
    await user.click(dialog.getByRole("button", { name: "Copy codes" }));
    expect(await navigator.clipboard.readText()).toBe("aaaa-1111\nbbbb-2222");
    await user.click(dialog.getByRole("button", { name: "Done" }));
    await waitFor(() => expect(screen.queryByRole("dialog")).toBeNull());
    expect(screen.getByRole("button", { name: "Remove app" })).toBeTruthy();
  });

  it("closes after the code when there are recovery codes already", async () => {
    const opened = await openSetUp();
    server.answer(BEGIN, SETUP);
    server.answer(CONFIRM, { recovery_codes: [] });
    await givePassword(opened);
    await opened.user.type(await opened.dialog.findByLabelText("Code from the app"), "123456");
    await opened.user.click(opened.dialog.getByRole("button", { name: "Turn on" }));
    await waitFor(() => expect(screen.queryByRole("dialog")).toBeNull());
  });

  it("forgets the key when the dialog is closed", async () => {
    const opened = await openSetUp();
    server.answer(BEGIN, SETUP);
    await givePassword(opened);
    await opened.dialog.findByLabelText("Key");
    await opened.user.click(opened.dialog.getByRole("button", { name: "Close" }));
    await waitFor(() => expect(screen.queryByRole("dialog")).toBeNull());
    await opened.user.click(await screen.findByRole("button", { name: /Set up|Remove app/ }));
    await screen.findByRole("dialog");
    expect(screen.queryByLabelText("Key")).toBeNull();
  });

  it("says how many recovery codes are left", async () => {
    server.answer(FACTORS, secondFactors({ recovery_codes_left: 1 }));
    render(<SecondFactorsPanels />);
    expect(await screen.findByText(/^1 code left/)).toBeTruthy();
  });
});
