import { describe, expect, it } from "vitest";

import type { JobEvent } from "@/api/types";
import { describeEvent } from "@/features/job/lib/describe-event";

function textOf(type: string, data: JobEvent["data"]): string | undefined {
  const event: JobEvent = {
    seq: 1, type, actor: "att_1", time: "2026-01-01T00:00:00Z", message: "", data, request_id: "", job_id: "job_1",
    team_seq: null,
  };
  return describeEvent(event)?.text;
}

const DETAILS = {
  layers: "blocks.3.mlp 62%, head 20%", first_sequence: 48, last_sequence: 55,
  worst_batch: "7.31 in rows of dataset:web train-00000-00002.tokens: 17, 21",
};
const SHOWN =
  "; gradient: blocks.3.mlp 62%, head 20%; sequences 48 to 55; highest loss 7.31 in rows of dataset:web train-00000-00002.tokens: 17, 21";

describe("events of registered models", () => {
  it("name the model and the version", () => {
    const text = (type: string, message: string) =>
      describeEvent({ seq: 1, type, actor: "ada", time: "2026-01-01T00:00:00Z", message, data: {}, request_id: "", job_id: "job_1", team_seq: null })?.text;
    expect(text("model.registered", "bot@3")).toBe("Registered as bot@3");
    expect(text("model.alias_moved", "bot@production is version 3")).toBe("Alias moved: bot@production is version 3");
    expect(text("model.alias_removed", "bot@production")).toBe("Alias removed: bot@production");
  });
});

describe("events of an evaluation", () => {
  it("show the results of a task", () => {
    expect(textOf("evaluation.task", { name: "facts", n: 40, tokens: 400, seconds: 2, values: { accuracy: 0.75, f1: 0.5 } }))
      .toBe("Evaluation facts: accuracy 0.7500, f1 0.5000 (40 items in 2.0 s)");
  });
});

describe("events of an evaluation after training", () => {
  it("name the job, or why there is none", () => {
    expect(textOf("evaluation.refused", { because: "2 jobs of team red wait", remedy: "cancel one" }))
      .toBe("Evaluation refused: 2 jobs of team red wait; cancel one");
  });
});

describe("events of a spike", () => {
  it("name layers and data", () => {
    expect(textOf("gradient.large", { step: 7, norm: 5123.4, because: "12.0 times the median of the last 20 steps", ...DETAILS }))
      .toBe(`Large gradient at step 7: norm 5.12e+3, 12.0 times the median of the last 20 steps${SHOWN}`);
    expect(textOf("step.skipped", { step: 7, because: "an outlier", ...DETAILS })).toBe(`Step 7 skipped: an outlier${SHOWN}`);
    expect(textOf("loss.large", { step: 7, loss: 9.5, limit: 4.25, ...DETAILS }))
      .toBe(`Large loss at step 7: 9.5000, above 4.2500${SHOWN}`);
  });

  it("name what was found when the step was computed again", () => {
    expect(textOf("step.recomputed", { step: 7, because: "the loss is not finite; the same result" }))
      .toBe("Step 7 was computed again: the loss is not finite; the same result");
    expect(textOf("gradient.corrupted", { step: "7", ranks: "1", node: "n1", because: "rank 1 was wrong" }))
      .toBe("A gradient was corrupted; its step was computed again: rank 1 was wrong");
    expect(textOf("replicas.compared", { step: "7", ranks: "1", node: "n1", because: "rank 1 was wrong" }))
      .toBe("Replicas compared after a restart: rank 1 was wrong");
  });

  it("of older versions have neither", () => {
    expect(textOf("step.skipped", { step: 7, because: "an outlier" })).toBe("Step 7 skipped: an outlier");
    expect(textOf("step.skipped", { step: 7, because: "an outlier", ...DETAILS, layers: "" }))
      .toBe(`Step 7 skipped: an outlier${SHOWN.replace("; gradient: blocks.3.mlp 62%, head 20%", "")}`);
  });
});

describe("alerts of rules", () => {
  it("show what was measured", () => {
    const event: JobEvent = {
      seq: 1, type: "alert.firing", actor: "alerts", time: "2026-01-01T00:00:00Z", message: "low MFU: mfu is 0.1", data: {},
      request_id: "", job_id: "job_1", team_seq: null,
    };
    expect(describeEvent(event)).toEqual({ text: "Alert low MFU: mfu is 0.1", tone: "bad", actor: null });
    expect(describeEvent({ ...event, type: "alert.resolved" })?.tone).toBe("good");
  });

  it("and a warning of the idle guard its message", () => {
    const event: JobEvent = {
      seq: 1, type: "job.idle", actor: "dispatch", time: "2026-01-01T00:00:00Z", message: "No progress for 12m.", data: {},
      request_id: "", job_id: "job_1", team_seq: null,
    };
    expect(describeEvent(event)).toEqual({ text: "No progress for 12m.", tone: "waiting", actor: null });
  });
});
