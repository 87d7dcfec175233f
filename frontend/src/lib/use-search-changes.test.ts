import { describe, expect, it } from "vitest";

import { SearchChanges } from "@/lib/use-search-changes";

const set = (name: string) => (after: URLSearchParams) => after.set(name, "1");

describe("changes of an address", () => {
  it("build on those that have not arrived, also when an earlier one arrives in between", () => {
    const changes = new SearchChanges("");
    const first = changes.change(set("axis")).toString();
    changes.change(set("scale"));
    changes.arrived(first);
    expect(changes.change(set("smooth")).toString()).toBe("axis=1&scale=1&smooth=1");
  });

  it("build on what the reader went to since", () => {
    const changes = new SearchChanges("");
    const sent = changes.change(set("axis")).toString();
    changes.arrived(sent);
    changes.arrived("zoom=1");
    expect(changes.change(set("scale")).toString()).toBe("zoom=1&scale=1");
  });
});
