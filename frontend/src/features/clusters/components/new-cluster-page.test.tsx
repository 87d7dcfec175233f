import { forEachDiagnostic } from "@codemirror/lint";
import { EditorView } from "@codemirror/view";
import { screen, waitFor } from "@testing-library/react";
import { describe, expect, it } from "vitest";

import { NewClusterPage } from "@/features/clusters/components/new-cluster-page";
import { cluster, page } from "@/testing/documents";
import { render } from "@/testing/render";
import { refuse, server } from "@/testing/server";

const REGISTER = "POST /clusters";
const CHECK = "POST /clusters:check";
const KINDS = page(
  {
    kind: "slurm",
    title: "Slurm",
    configuration: {
      description: "A Slurm cluster.",
      required: ["url"],
      properties: { url: { description: "of slurmrestd" }, account: { default: "main" } },
    },
  },
  { kind: "local", title: "This machine", configuration: { properties: {} } },
);

async function open() {
  server.answer("GET /clusters:kinds", KINDS);
  const rendered = render(<NewClusterPage />, { at: "/clusters/new", path: "/clusters/new" });
  await screen.findByRole("textbox", { name: "Configuration as YAML" });
  return rendered;
}

const editor = () =>
  EditorView.findFromDOM(screen.getByRole("textbox", { name: "Configuration as YAML" })) as EditorView;

function write(text: string): void {
  editor().dispatch({ changes: { from: 0, to: editor().state.doc.length, insert: text } });
}

function remarks(): [string, string][] {
  const found: [string, string][] = [];
  const { state } = editor();
  forEachDiagnostic(state, (each, from, to) => found.push([state.sliceDoc(from, to), each.message]));
  return found;
}

describe("cluster registration", () => {
  it("starts from a text with the needed fields to fill in and the others as comments", async () => {
    await open();
    expect(editor().state.doc.toString()).toBe('url:   # of slurmrestd\n# account: "main"\n');
    expect(screen.getByText("A Slurm cluster.")).toBeTruthy();
  });

  it("starts over when another kind is chosen", async () => {
    const { user } = await open();
    await user.selectOptions(screen.getByLabelText("Kind"), "local");
    await waitFor(() => expect(editor().state.doc.toString()).toBe(""));
  });

  it("sends name, kind and configuration, and leads to the cluster's page", async () => {
    const { user, address } = await open();
    server.answer(REGISTER, cluster({ id: "cls_9" }));
    await user.type(screen.getByLabelText(/^Name/), "iron");
    write("url: https://slurm.example.org\n");
    await user.click(screen.getByRole("button", { name: "Register" }));
    await waitFor(() => expect(address()).toBe("/clusters/cls_9"));
    expect(server.calls(REGISTER)[0]?.json).toEqual({
      name: "iron",
      kind: "slurm",
      config: { url: "https://slurm.example.org" },
    });
  });

  it("shows a refused name under its field, and a refused setting at its place in the text", async () => {
    const { user } = await open();
    const errors = [
      { pointer: "/name", code: "taken", detail: "the name is taken" },
      { pointer: "/config/url", code: "invalid", detail: "must begin with https" },
    ];
    server.answer(REGISTER, refuse(422, { code: "invalid", detail: "refused", errors }));
    await user.type(screen.getByLabelText(/^Name/), "iron");
    write("account: main\nurl: ftp://x\n");
    await user.click(screen.getByRole("button", { name: "Register" }));
    const name = screen.getByLabelText(/^Name/);
    await waitFor(() => expect(name.getAttribute("aria-invalid")).toBe("true"));
    const described = (name.getAttribute("aria-describedby") ?? "").split(" ");
    expect(described.map((id) => document.getElementById(id)?.textContent)).toContain("the name is taken");
    const [[place, message] = []] = remarks();
    expect(place).toContain("ftp://x");
    expect(message).toContain("must begin with https");
    write("url: https://x\n");
    await waitFor(() => expect(remarks()).toEqual([]));
  });

  it("checks without saving, and shows what the check found", async () => {
    const { user } = await open();
    server.answer(CHECK, {
      usable: false,
      version: "",
      facts: {},
      findings: [{ check: "partition", level: "error", detail: "no partition named gpu", remedy: "name another" }],
    });
    write("url: https://x\n");
    await user.click(await screen.findByRole("button", { name: "Check without saving" }));
    expect((await screen.findByRole("alert")).dataset.tone).toBe("bad");
    expect(screen.getByText(/no partition named gpu/i)).toBeTruthy();
    expect(server.calls(CHECK)[0]?.json).toEqual({ kind: "slurm", config: { url: "https://x" } });
    expect(server.calls(REGISTER)).toHaveLength(0);
  });

  it("can neither check nor register a text that is no YAML", async () => {
    await open();
    write("url: [1\n");
    await waitFor(() => expect(screen.getByRole("button", { name: "Register" })).toHaveProperty("disabled", true));
    expect(screen.getByRole("button", { name: "Check without saving" })).toHaveProperty("disabled", true);
  });
});
