import { describe, expect, it } from "vitest";

import { configRemarks, configTemplate, configText, parseConfig } from "@/features/clusters/lib/config-yaml";

describe("a configuration as YAML", () => {
  it("is empty where nothing but remarks is written", () => {
    expect(parseConfig("").spec).toEqual({});
    expect(parseConfig("# directory: null\n").spec).toEqual({});
    expect(parseConfig("- a").spec).toBeNull();
    expect(parseConfig("a: [").spec).toBeNull();
    expect(parseConfig(configText({ a: { b: 1 } })).spec).toEqual({ a: { b: 1 } });
  });

  it("begins with what a kind needs, the rest in remarks", () => {
    const schema = {
      required: ["host"],
      properties: { host: { description: "where\nit is" }, port: { default: 22 }, user: {} },
    };
    expect(configTemplate(schema)).toBe("host:   # where it is\n# port: 22\n# user: null\n");
    expect(parseConfig(configTemplate(schema)).spec).toEqual({ host: null });
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
