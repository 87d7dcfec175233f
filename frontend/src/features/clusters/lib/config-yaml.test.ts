import { describe, expect, it } from "vitest";

import {
  configRemarks,
  configText,
  hasProblem,
  parseConfig,
  problemAt,
  setConfigField,
} from "@/features/clusters/lib/config-yaml";

describe("a configuration as YAML", () => {
  it("is empty where nothing but remarks is written", () => {
    expect(parseConfig("").spec).toEqual({});
    expect(parseConfig("# directory: null\n").spec).toEqual({});
    expect(parseConfig("- a").spec).toBeNull();
    expect(parseConfig("a: [").spec).toBeNull();
    expect(parseConfig(configText({ a: { b: 1 } })).spec).toEqual({ a: { b: 1 } });
  });

  it("has one field changed, and what is on the way to it made", () => {
    expect(setConfigField("", ["transport", "host"], "login1")).toBe("transport:\n  host: login1\n");
    expect(setConfigField("transport:\n", ["transport", "host"], "a")).toBe("transport:\n  host: a\n");
    const text = "# ours\npools:\n  gpu: {} # eight\negress:\n  - cidr: 10.0.0.0/8\n";
    expect(setConfigField(text, ["egress", "0", "cidr"], "10.1.0.0/16")).toBe(
      "# ours\npools:\n  gpu: {} # eight\negress:\n  - cidr: 10.1.0.0/16\n",
    );
    expect(setConfigField(text, ["pools", "gpu", "spot"], undefined)).toBe(text);
    expect(setConfigField("spot: true\n", ["spot"], undefined)).toBe("");
    expect(setConfigField("a: [", ["spot"], true)).toBe("a: [");
  });

  it("says which field a problem is of, and what has one within", () => {
    const problems = [{ pointer: "/config/gres/a~1b", code: "invalid", detail: "no such" }];
    expect(problemAt(problems, ["gres", "a/b"])).toBe("no such");
    expect(problemAt(problems, ["gres"])).toBeUndefined();
    expect(hasProblem(problems, ["gres"])).toBe(true);
    expect(hasProblem(problems, ["gre"])).toBe(false);
  });

  it("has the server's remarks at their place", () => {
    const text = "transport:\n  host: 7\n";
    const problems = [
      { pointer: "/config/transport/host", code: "string_type", detail: "Input should be a valid string" },
      { pointer: "/name", code: "invalid", detail: "of another field" },
    ];
    const remarks = configRemarks(text, problems);
    expect(remarks).toHaveLength(1);
    expect(text.slice(remarks[0]?.from, remarks[0]?.to)).toBe("host: 7");
    expect(remarks[0]?.message).toBe("transport.host: Input should be a valid string");
  });
});
