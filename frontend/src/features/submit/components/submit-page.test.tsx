import { EditorView } from "@codemirror/view";
import { screen, waitFor, within } from "@testing-library/react";
import { describe, expect, it } from "vitest";

import type { Job, Plan } from "@/api/types";
import { SubmitPage } from "@/features/submit/components/submit-page";
import { job, page, plan, preset, session, start } from "@/testing/documents";
import { render } from "@/testing/render";
import type { Answer } from "@/testing/server";
import { cut, held, refuse, server } from "@/testing/server";

const PLAN = "POST /jobs:plan";
const SUBMIT = "POST /jobs";

async function open(planned: Answer<Plan> = plan(), at = "/jobs/new") {
  server.answer("GET /session", session());
  server.answer("GET /datasets", page());
  server.answer("GET /presets", page(preset("small"), preset("large", { fits: { local: false } })));
  server.answer(PLAN, planned);
  const rendered = render(<SubmitPage />, { at, path: "/jobs/new" });
  await screen.findByRole("textbox", { name: "Job spec as YAML" });
  return rendered;
}

function editor(): EditorView {
  return EditorView.findFromDOM(screen.getByRole("textbox", { name: "Job spec as YAML" })) as EditorView;
}

function write(text: string): void {
  const view = editor();
  view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: text } });
}

const yaml = () => editor().state.doc.toString();
const submitButton = () => screen.getByRole("button", { name: "Submit job" });

describe("submit form", () => {
  it("starts from the first preset that fits a cluster, and says which one does not", async () => {
    await open();
    expect(screen.getByRole("radio", { name: /preset small/ }).getAttribute("aria-checked")).toBe("true");
    expect(screen.getByRole("radio", { name: /preset large/ }).textContent).toContain("fits no cluster here");
    expect(yaml()).toContain("name: small");
  });

  it("shows what the plan says of memory, cost, budgets and alternatives", async () => {
    const later = start({ starts_now: false, p50_seconds: 600, p90_seconds: 3600, unblocks: "" });
    await open(
      plan({
        start: later,
        expected: { p50_seconds: 120, p90_seconds: 300, p50_cost: 1.26, p90_cost: 3.15, like_jobs: 4 },
        budgets: [{ name: "spring", unit: "slot-hours", reserves: 4, available: 2, hard: true }],
        alternatives: [{ label: "on one node", start: start(), cost: { amount: 1, currency: "USD" }, changes: {} }],
      }),
    );
    const panel = await screen.findByRole("region", { name: "Estimate" });
    expect(await within(panel).findByText(/about 10m 00s, 90 % within 1h 00m/)).toBeTruthy();
    expect(within(panel).getByText(/Reserves 4.00 slot-hours of budget spring/)).toBeTruthy();
    expect(within(panel).getByText("on one node").parentElement?.textContent).toContain("starts immediately");
    expect(within(panel).getByText("10M")).toBeTruthy();
    expect(within(panel).getByText("of 16 GiB")).toBeTruthy();
    const figure = (name: string) => within(panel).getByText(name).nextElementSibling?.textContent;
    expect(figure("Expected duration")).toBe("2m 00s90% within 5m 00s, from 4 like jobs");
    expect(figure("Expected cost")).toBe("1.26 USD90% within 3.15 USD");
    expect(figure("Cost at the time limit")).toBe("1.50 USD");
  });

  it("shows no expected duration before a like job has ended", async () => {
    await open(plan());
    const panel = await screen.findByRole("region", { name: "Estimate" });
    expect(await within(panel).findByText("Cost at the time limit")).toBeTruthy();
    expect(within(panel).queryByText("Expected duration")).toBeNull();
  });

  it("takes times and sizes with units, as the YAML beside them does", async () => {
    const { user } = await open();
    const limit = screen.getByLabelText("Time limit");
    await user.type(limit, "1d 12h");
    await waitFor(() => expect(yaml()).toContain("time_limit_seconds: 1d 12h\n"));
    write("version: 1\nname: small\ntime_limit_seconds: 5400\nresources:\n  memory_bytes_per_node: 42949672960\n");
    await waitFor(() => expect(limit).toHaveProperty("value", "1h 30m"));
    expect(screen.getByLabelText("Memory per node")).toHaveProperty("value", "40 GiB");
    await user.clear(limit);
    expect(yaml()).not.toContain("time_limit_seconds");
    await user.type(limit, "2 weeks");
    expect(limit.getAttribute("aria-invalid")).toBe("true");
    expect(yaml()).toContain("time_limit_seconds: 2 weeks\n");
  });

  it("changes only the edited field of the YAML, and plans what is shown", async () => {
    const { user } = await open();
    await user.type(screen.getByLabelText("Steps"), "5");
    await waitFor(() => expect(yaml()).toBe("version: 1\nname: small\ntraining:\n  steps: 405 # few\n"));
    await waitFor(() => expect(server.calls(PLAN).at(-1)?.json).toMatchObject({ training: { steps: 405 } }));
  });

  it("shows text written in the editor in the fields, and the server's defaults as placeholders", async () => {
    await open();
    write("version: 1\nname: by-hand\n");
    await waitFor(() => expect(screen.getByLabelText("Name")).toHaveProperty("value", "by-hand"));
    await waitFor(() => expect(screen.getByLabelText("Sequence length")).toHaveProperty("placeholder", "512"));
  });

  it("shows a refused field's error under the field and blocks the submission", async () => {
    const errors = [{ pointer: "/training/steps", code: "too_small", detail: "must be at least 1" }];
    await open(refuse(422, { code: "invalid_spec", detail: "refused", errors }));
    const field = await screen.findByLabelText("Steps");
    await waitFor(() => expect(field.getAttribute("aria-invalid")).toBe("true"));
    const described = (field.getAttribute("aria-describedby") ?? "").split(" ");
    expect(described.map((id) => document.getElementById(id)?.textContent)).toContain("must be at least 1");
    expect(screen.getByText("training.steps")).toBeTruthy();
    expect(submitButton()).toHaveProperty("disabled", true);
    expect(screen.getByRole("status").textContent).toBe("1 field needs attention.");
  });

  it("falls back to the editor alone while the text is no YAML", async () => {
    await open();
    write("version: [1\n");
    await waitFor(() => expect(screen.getByLabelText("Name")).toHaveProperty("disabled", true));
    expect(submitButton()).toHaveProperty("disabled", true);
    write("version: 1\nname: repaired\n");
    await waitFor(() => expect(screen.getByLabelText("Name")).toHaveProperty("value", "repaired"));
    expect(submitButton()).toHaveProperty("disabled", false);
  });

  it("asks before a preset replaces an edited spec", async () => {
    const { user } = await open();
    write("version: 1\nname: mine\n");
    await waitFor(() => expect(screen.getByLabelText("Name")).toHaveProperty("value", "mine"));
    await user.click(screen.getByRole("radio", { name: /preset large/ }));
    const dialog = await screen.findByRole("dialog", { name: "Replace your changes?" });
    await user.click(within(dialog).getByRole("button", { name: "Keep my changes" }));
    expect(yaml()).toContain("name: mine");
    await user.click(screen.getByRole("radio", { name: /preset large/ }));
    await user.click(await screen.findByRole("button", { name: "Replace them" }));
    await waitFor(() => expect(yaml()).toContain("name: large"));
  });

  it("submits once for a double click and leads to the job's page", async () => {
    const answer = held<Job>();
    const { user, address } = await open();
    server.answer(SUBMIT, answer.answer);
    await user.dblClick(submitButton());
    answer.release(job({ id: "job_new" }));
    await waitFor(() => expect(address()).toBe("/jobs/job_new"));
    expect(server.calls(SUBMIT).map((call) => call.json)).toEqual([{ version: 1, name: "small", training: { steps: 40 } }]);
  });

  it("sends a submission again with the same key, and a corrected one with another", async () => {
    const { user, address } = await open();
    server.answer(SUBMIT, cut(), refuse(422, { code: "no", detail: "refused" }), job({ id: "job_new" }));
    await user.click(submitButton());
    await screen.findByText("The server does not answer.");
    await user.click(submitButton());
    await screen.findByText("Refused");
    await user.type(screen.getByLabelText("Name"), "-b");
    await user.click(submitButton());
    await waitFor(() => expect(address()).toBe("/jobs/job_new"));
    const [first, second, third] = server.calls(SUBMIT).map((call) => call.headers.get("Idempotency-Key"));
    expect(first).toMatch(/^[0-9a-f]{32}$/);
    expect(second).toBe(first);
    expect(third).not.toBe(first);
  });

  it("shows the errors of a refused submission at their fields until the text is changed", async () => {
    const errors = [{ pointer: "/name", code: "taken", detail: "this name is taken" }];
    const { user } = await open();
    server.answer(SUBMIT, refuse(422, { code: "invalid_spec", detail: "refused", errors }));
    await user.click(submitButton());
    const field = screen.getByLabelText("Name");
    await waitFor(() => expect(field.getAttribute("aria-invalid")).toBe("true"));
    await user.type(field, "x");
    await waitFor(() => expect(field.getAttribute("aria-invalid")).not.toBe("true"));
    expect(submitButton()).toHaveProperty("disabled", false);
  });

  it("forks a job: starts from its spec under a new name and sends only what differs", async () => {
    const parent = job({ id: "job_p", name: "run-fork", spec: { version: 1, name: "run-fork", training: { steps: 40 } } });
    server.answer("GET /jobs/{job_id}", parent);
    server.answer("POST /jobs/{job_id}:fork", job({ id: "job_child" }));
    const { user, address } = await open(plan(), "/jobs/new?fork=job_p");
    expect(screen.queryByRole("radiogroup", { name: "Preset" })).toBeNull();
    expect(screen.getByLabelText("Name")).toHaveProperty("value", "run-fork-2");
    await user.click(submitButton());
    await waitFor(() => expect(address()).toBe("/jobs/job_child"));
    expect(server.calls("POST /jobs/{job_id}:fork")[0]?.json).toEqual({ changes: { name: "run-fork-2" } });
  });
});
