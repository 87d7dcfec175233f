import { forEachDiagnostic } from "@codemirror/lint";
import { EditorView } from "@codemirror/view";
import { screen, waitFor, within } from "@testing-library/react";
import { describe, expect, it } from "vitest";

import { NewClusterPage } from "@/features/clusters/components/new-cluster-page";
import { parseConfig } from "@/features/clusters/lib/config-yaml";
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
      properties: {
        account: { type: "string", default: "main" },
        grace_seconds: { anyOf: [{ type: "integer" }, { type: "string", "x-unit": "duration" }], default: 300 },
        watch: { type: "boolean", default: true },
        policy: { $ref: "#/$defs/Policy", default: "Always" },
        ports: { type: "array", items: { type: "integer" }, default: [] },
        url: { type: "string", description: "Of slurmrestd." },
        pools: { type: "object", additionalProperties: { $ref: "#/$defs/Pool" }, default: {} },
        accelerators: {
          type: "object",
          additionalProperties: { anyOf: [{ type: "string" }, { type: "null" }] },
          default: { cpu: null },
        },
        transport: {
          discriminator: { propertyName: "kind" },
          oneOf: [{ $ref: "#/$defs/Local" }, { $ref: "#/$defs/Ssh" }],
          default: { kind: "local" },
        },
      },
      $defs: {
        Policy: { enum: ["Always", "Never"], type: "string" },
        Pool: {
          type: "object",
          properties: {
            spot: { type: "boolean", default: false },
            tolerations: { type: "array", items: { $ref: "#/$defs/Toleration" }, default: [] },
          },
        },
        Toleration: { type: "object", properties: { key: { type: "string", default: "" } } },
        Local: { type: "object", properties: { kind: { const: "local", default: "local" } } },
        Ssh: {
          type: "object",
          required: ["kind", "host"],
          properties: { kind: { const: "ssh" }, host: { type: "string" } },
        },
      },
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

const yaml = () => editor().state.doc.toString();
const section = (title: string) => screen.getByText(title).closest("details");
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
  it("shows required fields first, with their help, and the others folded", async () => {
    await open();
    expect(screen.getByText("A Slurm cluster.")).toBeTruthy();
    expect(screen.getByLabelText(/^URL/)).toHaveProperty("required", true);
    expect(screen.getByText("Of slurmrestd.")).toBeTruthy();
    expect(section("More settings")).toHaveProperty("open", false);
    expect(screen.getByLabelText("Grace")).toHaveProperty("placeholder", "5m");
    expect(screen.getByLabelText("Account")).toHaveProperty("placeholder", "main");
  });

  it("edits the YAML by the fields, and shows in the fields what the YAML says", async () => {
    const { user } = await open();
    await user.type(screen.getByLabelText(/^URL/), "https://x");
    await user.type(screen.getByLabelText("Grace"), "10m");
    await user.click(screen.getByLabelText("Watch"));
    await user.selectOptions(screen.getByLabelText("Policy"), "Never");
    await user.type(screen.getByLabelText("Ports", { selector: "input" }), "443{Enter}");
    expect(yaml()).toBe("url: https://x\ngrace_seconds: 10m\nwatch: false\npolicy: Never\nports:\n  - 443\n");
    write("url: https://y # ours\ngrace_seconds: 7200\n");
    await waitFor(() => expect(screen.getByLabelText(/^URL/)).toHaveProperty("value", "https://y"));
    expect(screen.getByLabelText("Grace")).toHaveProperty("value", "2h");
    await user.clear(screen.getByLabelText("Grace"));
    expect(yaml()).toBe("url: https://y # ours\n");
  });

  it("adds, changes and removes the settings of a pool, and a list within them", async () => {
    const { user } = await open();
    await user.type(screen.getByLabelText("New entry of Pools"), "h100");
    await user.click(screen.getByRole("button", { name: "Add to Pools" }));
    expect(yaml()).toBe("pools:\n  h100: {}\n");
    const pool = within(screen.getByRole("group", { name: "Pools: h100" }));
    await user.click(pool.getByLabelText("Spot"));
    await user.click(pool.getByRole("button", { name: "Add to Tolerations" }));
    await user.type(pool.getByLabelText("Key"), "gpu");
    expect(parseConfig(yaml()).spec).toEqual({ pools: { h100: { spot: true, tolerations: [{ key: "gpu" }] } } });
    await user.click(pool.getByRole("button", { name: "Remove Tolerations 1" }));
    await user.click(pool.getByLabelText("Spot"));
    expect(parseConfig(yaml()).spec).toEqual({ pools: { h100: {} } });
    await user.click(screen.getByRole("button", { name: "Remove Pools: h100" }));
    expect(yaml()).toBe("");
  });

  it("keeps default entries when one is added, and chooses one of several kinds", async () => {
    const { user } = await open();
    await user.type(screen.getByLabelText("New entry of Accelerators"), "h100");
    await user.click(screen.getByRole("button", { name: "Add to Accelerators" }));
    await user.type(screen.getByLabelText("h100"), "gpu:h100");
    expect(parseConfig(yaml()).spec).toEqual({ accelerators: { cpu: null, h100: "gpu:h100" } });
    expect(screen.queryByLabelText(/^Host/)).toBeNull();
    await user.selectOptions(screen.getByLabelText("Transport: kind"), "ssh");
    await user.type(screen.getByLabelText(/^Host/), "login1");
    expect(parseConfig(yaml()).spec).toMatchObject({ transport: { kind: "ssh", host: "login1" } });
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

  it("shows a refused name under its field, and a refused setting at its place in both views", async () => {
    const { user } = await open();
    const errors = [
      { pointer: "/name", code: "taken", detail: "the name is taken" },
      { pointer: "/config/url", code: "invalid", detail: "must begin with https" },
      { pointer: "/config/pools/a/spot", code: "invalid", detail: "must be true or false" },
    ];
    server.answer(REGISTER, refuse(422, { code: "invalid", detail: "refused", errors }));
    await user.type(screen.getByLabelText(/^Name/), "iron");
    write("account: main\nurl: ftp://x\npools: {a: {spot: 7}}\n");
    await user.click(screen.getByRole("button", { name: "Register" }));
    const name = screen.getByLabelText(/^Name/);
    await waitFor(() => expect(name.getAttribute("aria-invalid")).toBe("true"));
    const described = (name.getAttribute("aria-describedby") ?? "").split(" ");
    expect(described.map((id) => document.getElementById(id)?.textContent)).toContain("the name is taken");
    const [[place, message] = []] = remarks();
    expect(place).toContain("ftp://x");
    expect(message).toContain("must begin with https");
    expect(screen.getByLabelText(/^URL/).getAttribute("aria-invalid")).toBe("true");
    expect(section("Pools")).toHaveProperty("open", true);
    const pool = within(screen.getByRole("group", { name: "Pools: a" }));
    expect(pool.getByText("must be true or false")).toBeTruthy();
    write("url: https://x\n");
    await waitFor(() => expect(remarks()).toEqual([]));
  });

  it("tests without saving, and shows what the check found", async () => {
    const { user } = await open();
    server.answer(CHECK, {
      usable: false,
      version: "",
      facts: {},
      findings: [
        { check: "partition", level: "error", detail: "no partition named gpu", remedy: "name another", runbook: "/docs/a#b" },
      ],
    });
    write("url: https://x\n");
    await user.click(await screen.findByRole("button", { name: "Test" }));
    expect((await screen.findByRole("alert")).dataset.tone).toBe("bad");
    expect(screen.getByText(/no partition named gpu/i)).toBeTruthy();
    expect(screen.getByRole("link", { name: "Runbook" }).getAttribute("href")).toBe("/docs/a#b");
    expect(server.calls(CHECK)[0]?.json).toEqual({ kind: "slurm", config: { url: "https://x" } });
    expect(server.calls(REGISTER)).toHaveLength(0);
  });

  it("can neither check nor register a text that is no YAML", async () => {
    await open();
    write("url: [1\n");
    await waitFor(() => expect(screen.getByRole("button", { name: "Register" })).toHaveProperty("disabled", true));
    expect(screen.getByRole("button", { name: "Test" })).toHaveProperty("disabled", true);
  });
});
