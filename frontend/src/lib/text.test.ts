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
