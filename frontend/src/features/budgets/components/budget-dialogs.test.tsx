import { screen, waitFor, within } from "@testing-library/react";
import { describe, expect, it, vi } from "vitest";

import type { PoolPrice } from "@/api/types";
import { ChangeBudgetDialog } from "@/features/budgets/components/change-budget-dialog";
import { NewBudgetDialog } from "@/features/budgets/components/new-budget-dialog";
import { SeriesDialog } from "@/features/budgets/components/series-dialog";
import { budget, page, quotaNode, quotas } from "@/testing/documents";
import { render } from "@/testing/render";
import { refuse, server } from "@/testing/server";

const CREATE = "POST /budgets";
const CONNECT = "POST /series";
const CHANGE = "PATCH /budgets/{budget_id}";

const PRICE: PoolPrice = {
  pool_id: "pool_1",
  cluster: { id: "cls_1", name: "local" },
  pool: "cpu",
  accelerator: "cpu",
  currency: "USD",
  price_per_slot_hour: "1.000000",
  price_now: "1.000000",
  rules: [],
  spot: false,
  watts_per_slot: null,
  price_series_id: null,
  carbon_series_id: null,
  grams_per_kwh_now: null,
};

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

  it("shows and takes amounts with thousands separators, in the unit of the label", async () => {
    const onClose = vi.fn();
    server.answer(CHANGE, budget());
    const rich = budget({ unit: "money", currency: "EUR", amount: 1_234_567_500_000 });
    const { user } = render(<ChangeBudgetDialog read={{ budget: rich, tag: '"v4"' }} onClose={onClose} />);
    const amount = screen.getByLabelText(/^Amount, EUR/);
    expect(amount).toHaveProperty("value", "1,234,567.5");
    await user.clear(amount);
    await user.type(amount, "2500000");
    expect(amount).toHaveProperty("value", "2,500,000");
    await user.click(screen.getByRole("button", { name: "Save" }));
    await waitFor(() => expect(onClose).toHaveBeenCalledOnce());
    expect(server.calls(CHANGE)[0]?.json).toMatchObject({ amount: 2_500_000_000_000 });
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

describe("time series form", () => {
  it("shows and takes times with units, and is not sent while one cannot be read", async () => {
    server.answer("GET /series", page());
    server.answer(CONNECT, {
      id: "series_1",
      kind: "price",
      pool_id: "pool_1",
      cluster_id: null,
      stale_seconds: 7200,
      url: "",
      mapping: {},
      fetch_seconds: 5400,
      fetched_at: null,
      problem: "",
    });
    const { user } = render(<SeriesDialog price={PRICE} onClose={() => undefined} />);
    const form = within(await screen.findByRole("form", { name: "Price per slot-hour, USD" }));
    const interval = form.getByLabelText("Fetch interval");
    expect(interval).toHaveProperty("value", "1h");
    expect(form.getByLabelText("Lifetime of a value")).toHaveProperty("value", "2h");
    await user.type(form.getByLabelText("Provider URL"), "https://prices.example.org");
    await user.clear(interval);
    await user.type(interval, "often");
    const save = form.getByRole("button", { name: "Save" });
    expect(save).toHaveProperty("disabled", true);
    await user.clear(interval);
    await user.type(interval, "90m");
    await user.click(save);
    await waitFor(() => expect(server.calls(CONNECT)).toHaveLength(1));
    expect(server.calls(CONNECT)[0]?.json).toMatchObject({ fetch_seconds: 5400, stale_seconds: 7200 });
  });
});
