import { expect, it } from "vitest";

import { plain, sentence, splitMatches } from "@/lib/text";

it("drops the codes that colour a terminal", () => {
  expect(plain("\u001b[31mloss\u001b[0m 2.1")).toBe("loss 2.1");
});

it("marks every match, whatever its case, and loses no character", () => {
  const text = "Loss 2, loss 3";
  expect(splitMatches(text, "LOSS")).toEqual(["", "Loss", " 2, ", "loss", " 3"]);
  expect(splitMatches(text, "LOSS").join("")).toBe(text);
  expect(splitMatches(text, "")).toEqual([text]);
  expect(splitMatches("İstanbul i", "i")).toEqual(["İstanbul i"]);
});

it("begins a sentence with a capital", () => expect(sentence("out of memory")).toBe("Out of memory"));

it.each(["bot@1 does not meet accuracy>=0.8", "job_01 is stopping", "small.jsonl line 3: no text", "s3://data is not granted"])(
  "leaves the name at the beginning of: %s",
  (text) => expect(sentence(text)).toBe(text),
);
