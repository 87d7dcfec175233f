import { screen, waitFor } from "@testing-library/react";
import { describe, expect, it, vi } from "vitest";

import { WebhookFormDialog } from "@/features/webhooks/components/webhook-form-dialog";
import { session, webhook } from "@/testing/documents";
import { render } from "@/testing/render";
import { refuse, server } from "@/testing/server";

const CREATE = "POST /webhooks";

function open() {
  const onClose = vi.fn();
  return { ...render(<WebhookFormDialog opened teams={session().teams} onClose={onClose} />), onClose };
}

describe("webhook form", () => {
  it("sends the fields and shows the secret once", async () => {
    server.answer(CREATE, { ...webhook(), secret: "whsec_1" });
    const { user, onClose } = open();
    await user.type(screen.getByLabelText("Address"), "https://ci.example.org/hook");
    await user.type(screen.getByLabelText("Name"), "ci");
    await user.type(screen.getByLabelText("Events", { selector: "input" }), "job.submitted{Enter}");
    await user.click(screen.getByRole("button", { name: "Create" }));
    expect(await screen.findByText("whsec_1")).toBeTruthy();
    expect(server.calls(CREATE)[0]?.json).toEqual({
      url: "https://ci.example.org/hook",
      name: "ci",
      team: "red",
      types: ["job.submitted"],
      format: "cloudevents",
    });
    await user.click(screen.getByRole("button", { name: "Done" }));
    expect(onClose).toHaveBeenCalledOnce();
    await waitFor(() => expect(screen.queryByText("whsec_1")).toBeNull());
  });

  it("shows a refused value's error at its field, also for one entry of the events", async () => {
    const errors = [
      { pointer: "/url", code: "private_address", detail: "this address is private" },
      { pointer: "/types/0", code: "unknown", detail: "no such event" },
    ];
    server.answer(CREATE, refuse(422, { code: "invalid", detail: "refused", errors }));
    const { user } = open();
    await user.type(screen.getByLabelText("Address"), "https://10.0.0.1/");
    await user.click(screen.getByRole("button", { name: "Create" }));
    const address = screen.getByLabelText("Address");
    await waitFor(() => expect(address.getAttribute("aria-invalid")).toBe("true"));
    expect(screen.getByLabelText("Events", { selector: "input" }).getAttribute("aria-invalid")).toBe("true");
    expect(screen.getByLabelText("Name").getAttribute("aria-invalid")).not.toBe("true");
  });

  it("sends nothing for something that is no address", async () => {
    server.answer(CREATE, { ...webhook(), secret: "whsec_1" });
    const { user } = open();
    await user.type(screen.getByLabelText("Address"), "not an address");
    await user.click(screen.getByRole("button", { name: "Create" }));
    expect(screen.getByLabelText<HTMLInputElement>("Address").validity.typeMismatch).toBe(true);
    expect(server.calls(CREATE)).toHaveLength(0);
  });
});
