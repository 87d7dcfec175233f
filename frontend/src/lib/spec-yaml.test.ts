import { describe, expect, it } from "vitest";

import { fieldAt, locate, parseSpec, pointerPath, remarksFor, setField, toYaml } from "@/lib/spec-yaml";

const TEXT = `version: 1
name: stdlib-1m   # shown in the table
labels: {}
training:
  model: {preset: llama-1m}
  # twice the demo's
  steps: 200
  optimizer:
    learning_rate: 0.003
`;

const at = (text: string, pointer: string) => {
  const { from, to } = locate(text, pointer);
  return text.slice(from, to);
};

describe("parseSpec", () => {
  it("reads a mapping", () => {
    const { spec, remarks } = parseSpec(TEXT);
    expect(remarks).toEqual([]);
    expect(fieldAt(spec, ["training", "optimizer", "learning_rate"])).toBe(0.003);
    expect(fieldAt(spec, ["training", "model", "preset"])).toBe("llama-1m");
    expect(fieldAt(spec, ["training", "nothing", "here"])).toBeUndefined();
  });

  it("leaves words words: no, on and yes are no truth values", () => {
    expect(parseSpec("name: no\nproject: on\n").spec).toEqual({ name: "no", project: "on" });
  });

  it.each(["name: [1,", "a: 1\na: 2\n", "name: {x: 1"])("says where %j is not YAML", (text) => {
    const { spec, remarks } = parseSpec(text);
    expect(spec).toBeNull();
    expect(remarks.length).toBeGreaterThan(0);
    expect(remarks.every((remark) => remark.from < remark.to && remark.severity === "error")).toBe(true);
  });

  it.each(["", "- a\n- b\n", "just words"])("refuses %j, which is no mapping", (text) => {
    expect(parseSpec(text).spec).toBeNull();
    expect(parseSpec(text).remarks).toHaveLength(1);
  });
});

describe("setField", () => {
  it("changes one value and leaves every other character, comments included", () => {
    expect(setField(TEXT, ["training", "steps"], 50)).toBe(TEXT.replace("steps: 200", "steps: 50"));
  });

  it("adds a field and the mappings above it", () => {
    const text = setField(TEXT, ["resources", "processes_per_node"], 4);
    expect(fieldAt(parseSpec(text).spec, ["resources", "processes_per_node"])).toBe(4);
    expect(text).toContain("# twice the demo's");
  });

  it("removes a field that is cleared", () => {
    const text = setField(TEXT, ["training", "steps"], undefined);
    expect(fieldAt(parseSpec(text).spec, ["training", "steps"])).toBeUndefined();
  });

  it("quotes a text that would read as something else", () => {
    const text = setField(TEXT, ["name"], "2026");
    expect(fieldAt(parseSpec(text).spec, ["name"])).toBe("2026");
  });

  it("does not split a text with a comma within braces, and fills a field left empty", () => {
    const source = setField("data: {source: a}\n", ["data", "source"], "b, c: d");
    expect(fieldAt(parseSpec(source).spec, ["data", "source"])).toBe("b, c: d");
    expect(fieldAt(parseSpec(setField("name:\n", ["name"], "a")).spec, ["name"])).toBe("a");
  });

  it("starts from nothing, and does not touch what cannot be read", () => {
    expect(setField("", ["name"], "a")).toBe("name: a\n");
    expect(setField("name: [1,", ["name"], "a")).toBe("name: [1,");
  });

  it("writes small learning rates as numbers that come back the same", () => {
    for (const rate of [3e-7, 1e-10, 0.0003]) {
      const text = setField(TEXT, ["training", "optimizer", "learning_rate"], rate);
      expect(fieldAt(parseSpec(text).spec, ["training", "optimizer", "learning_rate"])).toBe(rate);
    }
  });
});

describe("locate", () => {
  it("finds a field with its value", () => {
    expect(at(TEXT, "/training/steps")).toBe("steps: 200");
    expect(at(TEXT, "/training/model/preset")).toBe("preset: llama-1m");
    expect(at(TEXT, "/training")).toBe("training");
  });

  it("falls back to the deepest part that is there", () => {
    expect(at(TEXT, "/training/optimizer/beta1")).toBe("optimizer");
    expect(at(TEXT, "/checkpoint/every_steps")).toBe("version: 1");
    expect(at("xs: [a, b]\n", "/xs/1")).toBe("b");
  });

  it("reads escaped names", () => {
    expect(pointerPath("/labels/a~1b~0c")).toEqual(["labels", "a/b~c"]);
    expect(pointerPath("")).toEqual([]);
  });
});

it("puts the field's name before what is said of it", () => {
  const [remark] = remarksFor(TEXT, [{ pointer: "/training/steps", code: "min", detail: "is 0" }], "error");
  expect(remark).toMatchObject({ message: "training.steps: is 0", severity: "error" });
});

it("writes a spec in the order people write it, with what it does not know at the end", () => {
  const shuffled = { zeta: 1, training: { seed: 1, steps: 2, model: { preset: "a" } }, name: "n", version: 1 };
  expect(toYaml(shuffled)).toBe(
    "version: 1\nname: n\ntraining:\n  model:\n    preset: a\n  steps: 2\n  seed: 1\nzeta: 1\n",
  );
});

it("brings a spec back as it was after a round trip through YAML", () => {
  const { spec } = parseSpec(TEXT);
  expect(spec).not.toBeNull();
  expect(parseSpec(toYaml(spec ?? {})).spec).toEqual(spec);
});
