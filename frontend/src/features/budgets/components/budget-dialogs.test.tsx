import { screen, waitFor } from "@testing-library/react";
import { describe, expect, it, vi } from "vitest";

import { ChangeBudgetDialog } from "@/features/budgets/components/change-budget-dialog";
import { NewBudgetDialog } from "@/features/budgets/components/new-budget-dialog";
import { budget, page, quotaNode, quotas } from "@/testing/documents";
import { render } from "@/testing/render";
import { refuse, server } from "@/testing/server";

const CREATE = "POST /budgets";
const CHANGE = "PATCH /budgets/{budget_id}";

async function openNew() {
  server.answer("GET /quotas", quotas(quotaNode("red", { path: "org/red" })));
  server.answer("GET /clusters", page());
  const onClose = vi.fn();
  const rendered = render(<NewBudgetDialog onClose={onClose} />);
  await screen.findByRole("option", { name: "org/red" });
  await rendered.user.type(screen.getByLabelText(/^Name/), "spring");
  return { ...rendered, onClose };
}

const makeButton = () => screen.getByRole("button", { name: "Create budget" });

describe("new budget form", () => {
  it("sends slot-hours in the unit of the API, without a currency", async () => {
    const { user, onClose } = await openNew();
    server.answer(CREATE, budget());
    await user.selectOptions(screen.getByLabelText("Owner"), "red");
    await user.type(screen.getByLabelText(/^Slot-hours/), "10");
    await user.click(screen.getByLabelText(/^Hard/));
    await user.click(makeButton());
    await waitFor(() => expect(onClose).toHaveBeenCalledOnce());
    expect(server.calls(CREATE)[0]?.json).toEqual({
      node_id: "red",
      name: "spring",
      unit: "slot_hours",
      period: "month",
      amount: 36_000,
      soft_percent: 80,
      hard: true,
    });
  });

  it("asks for a currency of money only, and sends it in capitals", async () => {
    const { user, onClose } = await openNew();
    server.answer(CREATE, budget());
    expect(screen.queryByLabelText("Currency")).toBeNull();
    await user.selectOptions(screen.getByLabelText("Unit"), "money");
    await user.clear(screen.getByLabelText("Currency"));
    await user.type(screen.getByLabelText("Currency"), "eur");
    await user.type(screen.getByLabelText(/^Amount/), "5");
    await user.click(makeButton());
    await waitFor(() => expect(onClose).toHaveBeenCalledOnce());
    expect(server.calls(CREATE)[0]?.json).toMatchObject({ unit: "money", currency: "EUR", hard: false });
  });

  it("shows refused values at their fields and stays open", async () => {
    const { user, onClose } = await openNew();
    const errors = [{ pointer: "/amount", code: "too_large", detail: "more than the group has" }];
    server.answer(CREATE, refuse(422, { code: "invalid", detail: "refused", errors }));
    await user.type(screen.getByLabelText(/^Slot-hours/), "10");
    await user.click(makeButton());
    const field = screen.getByLabelText(/^Slot-hours/);
    await waitFor(() => expect(field.getAttribute("aria-invalid")).toBe("true"));
    expect(screen.getByLabelText(/^Name/).getAttribute("aria-invalid")).not.toBe("true");
    expect(onClose).not.toHaveBeenCalled();
  });

  it("cannot be sent when the places of budgets are not known", async () => {
    server.answer("GET /quotas", refuse(503, { code: "down", detail: "no answer" }));
    server.answer("GET /clusters", page());
    render(<NewBudgetDialog onClose={() => undefined} />);
    expect((await screen.findByRole("alert")).textContent).toContain("No answer");
    expect(makeButton()).toHaveProperty("disabled", true);
  });
});

describe("budget change form", () => {
  it("starts from the budget and sends the change against the version that was read", async () => {
    const onClose = vi.fn();
    server.answer(CHANGE, budget());
    const { user } = render(<ChangeBudgetDialog read={{ budget: budget(), tag: '"v4"' }} onClose={onClose} />);
    const amount = screen.getByLabelText(/^Slot-hours/);
    expect(amount).toHaveProperty("value", "10");
    await user.clear(amount);
    await user.type(amount, "2");
    await user.click(screen.getByLabelText(/^Active/));
    await user.click(screen.getByRole("button", { name: "Save" }));
    await waitFor(() => expect(onClose).toHaveBeenCalledOnce());
    const [call] = server.calls(CHANGE);
    expect(call?.json).toEqual({ name: "spring", amount: 7200, soft_percent: 80, hard: false, active: false });
    expect(call?.headers.get("If-Match")).toBe('"v4"');
  });

  it("stays open when somebody else has changed the budget", async () => {
    const onClose = vi.fn();
    server.answer(CHANGE, refuse(412, { code: "version_conflict", detail: "it has changed" }));
    const { user } = render(<ChangeBudgetDialog read={{ budget: budget(), tag: '"v4"' }} onClose={onClose} />);
    await user.click(screen.getByRole("button", { name: "Save" }));
    expect((await screen.findByRole("alert")).textContent).toContain("It has changed");
    expect(onClose).not.toHaveBeenCalled();
  });
});
