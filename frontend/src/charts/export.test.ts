import { expect, it } from "vitest";

import { csvOf } from "@/charts/export";

it("writes the points of all lines on one axis", () => {
  const csv = csvOf("step", [
    { label: "training loss", series: { steps: [1, 2, 3], values: [3, null, 2.5] } },
    { label: 'run "a", b', series: { steps: [2], values: [4] } },
  ]);
  expect(csv).toBe('step,training loss,"run ""a"", b"\n1,3,\n2,,4\n3,2.5,\n');
});
