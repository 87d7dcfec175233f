import { describe, expect, it } from "vitest";

import { errorAt, Problem } from "@/api/problem";

describe("errorAt", () => {
  const refused = new Problem({
    status: 422,
    code: "invalid_body",
    message: "The body is invalid.",
    fields: [
      { pointer: "/types/0", code: "unknown", detail: "There is no such type." },
      { pointer: "/name", code: "required", detail: "A name is required." },
    ],
  });

  it("finds what was refused at a field or below it", () => {
    expect(errorAt(refused, "/name")).toBe("A name is required.");
    expect(errorAt(refused, "/types")).toBe("There is no such type.");
  });

  it("finds nothing at other fields, or in other errors", () => {
    expect(errorAt(refused, "/type")).toBeUndefined();
    expect(errorAt(refused, "/name/first")).toBeUndefined();
    expect(errorAt(new TypeError("a bug"), "/name")).toBeUndefined();
    expect(errorAt(null, "/name")).toBeUndefined();
  });
});
