import { screen, waitFor, within } from "@testing-library/react";
import { describe, expect, it } from "vitest";

import type { ComparedResult, Comparison, Lineage, LineageEdge, LineageNode } from "@/api/types";
import { ModelPage } from "@/features/models/components/model-page";
import { ModelsPage } from "@/features/models/components/models-page";
import { page, session } from "@/testing/documents";
import { modelVersion, registeredModel } from "@/testing/models";
import { render } from "@/testing/render";
import { refuse, server } from "@/testing/server";

const TIME = "2026-01-02T03:04:05Z";
const MODEL = registeredModel();

function node(id: string, kind: LineageNode["kind"], name: string, part: Partial<LineageNode> = {}): LineageNode {
  return { id, kind, name, state: "stored", digest: null, time: TIME, made_by: null, ...part };
}

function edge(target: string, relation: LineageEdge["relation"], source: string, reference = ""): LineageEdge {
  return { source_id: source, target_id: target, relation, reference };
}

const LINEAGE: Lineage = {
  of: "art_2",
  nodes: [
    node("art_2", "model", "train-2"),
    node("job_2", "job", "train-2", { state: "succeeded" }),
    node("art_1", "model", "train-1", { digest: "cd".repeat(32), made_by: "job_1" }),
    node("dset_1", "dataset", "books", { state: "deleted" }),
    node("mdl_1@2", "version", "bot@2", { state: "registered" }),
  ],
  edges: [
    edge("art_2", "made_by", "job_2"),
    edge("job_2", "base", "art_1", "model:bot@production"),
    edge("job_2", "trained_on", "dset_1"),
    edge("mdl_1@2", "version_of", "art_2"),
  ],
  cut: [],
};

function compared(number: number, value: number, part: Partial<ComparedResult>, trainedOn: string[] = []): ComparedResult {
  return {
    version: number,
    aliases: number === 1 ? ["production"] : [],
    result: {
      evaluation: "facts",
      metric: "accuracy",
      value,
      n: 1200,
      tokens: 9000,
      standard_error: 0.01,
      low: value - 0.02,
      high: value + 0.02,
      data_source: "dataset:facts",
      dataset: "dset_1",
      trained_on: trainedOn,
      job: { id: `job_e${number}`, name: `evaluate-${number}` },
      created_at: TIME,
    },
    difference: null,
    ...part,
  };
}

const EVALUATIONS: Comparison = {
  against: 1,
  items: [
    compared(2, 0.81, {
      difference: {
        value: 0.11,
        low: 0.08,
        high: 0.14,
        is_significant: true,
        is_better: true,
        is_paired: true,
        p_value: 0.0123,
      },
    }),
    compared(1, 0.7, {}, ["job_1"]),
  ],
};

const GRANT = { team: { id: "team_2", name: "blue" }, granted_by: "ada", created_at: TIME };

const VERSIONS = [modelVersion(2, []), modelVersion(1, ["production"])];

function open(model = MODEL, role: "viewer" | "member" | "admin" = "viewer", versions = VERSIONS) {
  server.answer("GET /session", session({ teams: [{ id: "team_1", name: "red", role }] }));
  server.answer("GET /models/{model_id}/grants", page(GRANT));
  server.answer("GET /lineage", LINEAGE);
  server.answer("GET /models/{model_id}", model);
  server.answer("GET /models/{model_id}/evaluations", EVALUATIONS);
  server.answer("GET /models/{model_id}/versions", page(...versions));
  return render(<ModelPage />, { at: "/models/mdl_1", path: "/models/:modelId" });
}

describe("model page", () => {
  it("shows versions with their jobs, aliases and the card, without HTML of its own", async () => {
    const { container } = open();
    const versions = await screen.findByRole("table", { name: "Versions" });
    expect(within(versions).getByRole("link", { name: "train-2" }).getAttribute("href")).toBe("/jobs/job_2");
    expect(within(versions).getByText("production")).toBeTruthy();
    expect(screen.getByText("model:bot@production")).toBeTruthy();
    expect(screen.getByRole("heading", { name: "Bot" })).toBeTruthy();
    expect(screen.getByText("<b>Answers</b> questions.")).toBeTruthy();
    expect(container.querySelector("b")).toBeNull();
  });

  it("shows evaluations with their intervals, the difference to production, and what was trained on", async () => {
    open();
    const table = within(await screen.findByRole("table", { name: "Evaluations" }));
    const [, better, production] = table.getAllByRole("row").map((row) => row.textContent);
    expect(better).toContain("0.81");
    expect(better).toContain("0.79 to 0.83");
    expect(better).toContain("+0.11, better");
    expect(better).not.toContain("trained on");
    expect(production).toContain("trained on");
    expect(table.getByRole("link", { name: "evaluate-2" }).getAttribute("href")).toBe("/jobs/job_e2");
    expect(screen.getByText(/They say little about other data/)).toBeTruthy();
  });

  it("shows what the newest version was made of, with links, and what was made from it", async () => {
    open();
    const made = within(await screen.findByRole("region", { name: "Made of" }));
    expect(made.getAllByRole("listitem").map((item) => item.firstChild?.textContent)).toEqual([
      "made by",
      "started from",
      "trained on",
    ]);
    expect(made.getByRole("link", { name: "train-2" }).getAttribute("href")).toBe("/jobs/job_2");
    expect(made.getByRole("link", { name: "train-1" }).getAttribute("href")).toBe("/jobs/job_1");
    expect(made.getByText("as model:bot@production")).toBeTruthy();
    expect(made.queryByRole("link", { name: "books" })).toBeNull();
    const used = within(screen.getByRole("region", { name: "Used for" }));
    expect(used.getByRole("link", { name: "bot@2" }).getAttribute("href")).toBe("/models/mdl_1");
    expect(screen.queryByText(/There may be more/)).toBeNull();
  });

  it("calls a version imported that no job here made, and says why none can start from it", async () => {
    const imported = { job: null, attempt: null };
    open(MODEL, "viewer", [
      { ...modelVersion(2, []), ...imported, not_trainable: "model_type is 'gpt2'" },
      { ...modelVersion(1, ["production"]), ...imported },
    ]);
    const table = within(await screen.findByRole("table", { name: "Versions" }));
    const [, newest, first] = table.getAllByRole("row").map((row) => row.textContent);
    expect(newest).toContain("ImportedNo job can start from it: model_type is 'gpt2'");
    expect(first).toContain("Imported");
    expect(first).not.toContain("100"); // the step that the answer has
    expect(first).not.toContain("No job can start");
  });

  it("says when a limit has cut the lineage", async () => {
    open();
    server.answer("GET /lineage", { ...LINEAGE, cut: ["nodes"] });
    expect(await screen.findByText(/There may be more/)).toBeTruthy();
  });

  it("moves an alias to the version of the row", async () => {
    server.answer("PUT /models/{model_id}/aliases/{alias}", {
      name: "production", version: 2, moved_by: "ada", moved_at: TIME,
    });
    const { user } = open();
    await user.click(await screen.findByRole("button", { name: "Move an alias of bot to version 2" }));
    const dialog = await screen.findByRole("dialog");
    await user.click(within(dialog).getByRole("button", { name: "Move" }));
    expect(await screen.findByText("bot@production is version 2.")).toBeTruthy();
    expect(server.calls("PUT /models/{model_id}/aliases/{alias}")[0]?.json).toEqual({ version: 2 });
  });

  it("promotes a version with the requirements of the lines", async () => {
    server.answer("PUT /models/{model_id}/aliases/{alias}", {
      name: "stable", version: 2, moved_by: "ada", moved_at: TIME,
    });
    const { user } = open(MODEL, "member");
    await user.click(await screen.findByRole("button", { name: "Promote version 2 of bot" }));
    const dialog = within(await screen.findByRole("dialog"));
    const alias = dialog.getByRole("textbox", { name: "To the alias" });
    expect((alias as HTMLInputElement).value).toBe("production");
    await user.clear(alias);
    await user.type(alias, "stable");
    await user.type(dialog.getByRole("textbox", { name: "Requirements" }), " accuracy>=0.8{Enter}{Enter}held-out.loss<=2.1");
    await user.click(dialog.getByRole("button", { name: "Promote" }));
    expect(await screen.findByText("bot@stable is version 2.")).toBeTruthy();
    const [call] = server.calls("PUT /models/{model_id}/aliases/{alias}");
    expect(call?.path).toBe("/api/v1/models/mdl_1/aliases/stable");
    expect(call?.json).toEqual({ version: 2, require: ["accuracy>=0.8", "held-out.loss<=2.1"] });
  });

  it("shows why a version is not promoted, and keeps the form", async () => {
    server.answer(
      "PUT /models/{model_id}/aliases/{alias}",
      refuse(409, {
        code: "requirement_not_met",
        detail: "bot@2 does not meet accuracy>=0.9: facts.accuracy is 0.81",
        remedy: "evaluate another version",
      }),
    );
    const { user } = open(MODEL, "admin");
    await user.click(await screen.findByRole("button", { name: "Promote version 2 of bot" }));
    const dialog = within(await screen.findByRole("dialog"));
    const requirements = dialog.getByRole("textbox", { name: "Requirements" });
    await user.type(requirements, "accuracy>=0.9");
    await user.click(dialog.getByRole("button", { name: "Promote" }));
    expect(await dialog.findByText(/does not meet accuracy>=0.9: facts.accuracy is 0.81/)).toBeTruthy();
    expect(dialog.getByText(/Evaluate another version/)).toBeTruthy();
    expect((requirements as HTMLTextAreaElement).value).toBe("accuracy>=0.9");
  });

  it("offers viewers no promotion", async () => {
    open(MODEL, "viewer");
    expect(await screen.findByRole("button", { name: "Move an alias of bot to version 2" })).toBeTruthy();
    expect(screen.queryByRole("button", { name: /^Promote/ })).toBeNull();
  });

  it("changes the card", async () => {
    server.answer("PATCH /models/{model_id}", MODEL);
    const { user } = open();
    await user.click(await screen.findByRole("button", { name: "Edit" }));
    const card = screen.getByRole("textbox", { name: /Model card/ });
    await user.clear(card);
    await user.type(card, "new");
    await user.type(screen.getByLabelText("Tags", { selector: "input" }), "english{Enter}");
    await user.click(screen.getByRole("button", { name: "Save" }));
    await waitFor(() => expect(server.calls("PATCH /models/{model_id}")[0]?.json).toEqual({ card: "new", tags: ["chat", "english"] }));
  });

  it("deletes a version that nothing needs, and says what needs one", async () => {
    const preview = { model: MODEL, versions: [modelVersion(2, [])], aliases: [], blocked_by: [], used_by: [], grants: [] };
    server.answer("GET /models/{model_id}/versions/{version_number}/deletion", preview);
    server.answer("DELETE /models/{model_id}/versions/{version_number}", null);
    const { user } = open();
    await user.click(await screen.findByRole("button", { name: "Delete version 2 of bot" }));
    const yes = await screen.findByRole("button", { name: "Delete the version" });
    await waitFor(() => expect(yes.hasAttribute("disabled")).toBe(false));
    await user.click(yes);
    expect(await screen.findByText("bot@2 is deleted.")).toBeTruthy();
    server.answer("GET /models/{model_id}/versions/{version_number}/deletion", {
      ...preview,
      aliases: MODEL.aliases,
      grants: [GRANT],
    });
    await user.click(await screen.findByRole("button", { name: "Delete version 1 of bot" }));
    expect(await screen.findByText(/while an alias names it: production/)).toBeTruthy();
    expect(screen.getByText(/These teams read it, and lose it, also for their jobs: blue/)).toBeTruthy();
    expect(screen.getByRole("button", { name: "Delete the version" }).hasAttribute("disabled")).toBe(true);
  });
});

describe("sharing of a model", () => {
  it("is shown to its team, and offered to the administrators alone", async () => {
    open();
    const panel = within(await screen.findByRole("region", { name: "Shared with" }));
    expect(await panel.findByText("blue")).toBeTruthy();
    expect(panel.queryByRole("button")).toBeNull();
  });

  it("begins and ends by the name of the team", async () => {
    server.answer("PUT /models/{model_id}/grants/{team_name}", { ...GRANT, team: { id: "team_3", name: "green" } });
    server.answer("DELETE /models/{model_id}/grants/{team_name}", null);
    const { user } = open(MODEL, "admin");
    await user.type(await screen.findByRole("textbox", { name: "Team" }), "green");
    await user.click(screen.getByRole("button", { name: "Share" }));
    expect(await screen.findByText("green can read bot.")).toBeTruthy();
    expect(server.calls("PUT /models/{model_id}/grants/{team_name}")[0]?.path).toContain("/grants/green");
    await user.click(screen.getByRole("button", { name: "Stop sharing with blue" }));
    await user.click(await screen.findByRole("button", { name: "Stop sharing" }));
    expect(await screen.findByText("bot is no longer shared with blue.")).toBeTruthy();
    expect(server.calls("DELETE /models/{model_id}/grants/{team_name}")[0]?.path).toContain("/grants/blue");
  });
});

describe("page of a model that another team shares", () => {
  it("shows how to use it, and offers nothing that only its team can do", async () => {
    open({ ...MODEL, is_shared: true });
    server.answer("GET /lineage", { ...LINEAGE, cut: ["team"] });
    const versions = await screen.findByRole("table", { name: "Versions" });
    expect(screen.getByText("model:red/bot@production")).toBeTruthy();
    expect(within(versions).getByText("train-2")).toBeTruthy();
    expect(within(versions).queryByRole("link", { name: "train-2" })).toBeNull();
    expect(await screen.findByText(/leads to a model of another team/)).toBeTruthy();
    expect(screen.queryByText(/There may be more/)).toBeNull();
    expect(screen.queryByRole("button", { name: /Move an alias|Delete version|Edit/ })).toBeNull();
    expect(screen.queryByRole("region", { name: "Shared with" })).toBeNull();
  });
});

describe("models page", () => {
  it("lists models with their aliases", async () => {
    server.answer("GET /models", page(MODEL));
    render(<ModelsPage />);
    const table = await screen.findByRole("table", { name: "Models" });
    expect(within(table).getByRole("link", { name: "bot" }).getAttribute("href")).toBe("/models/mdl_1");
    expect(within(table).getByText("production: 1")).toBeTruthy();
  });

  it("names a shared model as specs do", async () => {
    server.answer("GET /models", page({ ...MODEL, is_shared: true }));
    render(<ModelsPage />);
    const table = await screen.findByRole("table", { name: "Models" });
    expect(within(table).getByRole("link", { name: "red/bot" })).toBeTruthy();
    expect(within(table).getByText("red (shared with you)")).toBeTruthy();
  });

  it("says how to register one when there is none", async () => {
    server.answer("GET /models", page());
    render(<ModelsPage />);
    expect(await screen.findByText("athanor model register NAME JOB")).toBeTruthy();
  });
});
