import { screen } from "@testing-library/react";
import { describe, expect, it } from "vitest";

import { ChartsPanel } from "@/features/job/components/charts-panel";
import { ProgressPanel } from "@/features/job/components/progress-panel";
import { job } from "@/testing/documents";
import { render } from "@/testing/render";
import { server } from "@/testing/server";

const NO_POINTS = { last_step: -1, names: [], series: {}, tokens: null };
const EXPORT = { export: { job: "job_2", step: 40 }, training: {} };

describe("a job without points", () => {
  it.each([
    [{ training: {} }, "The job ended before its first step."],
    [EXPORT, "The job exports a checkpoint and trains nothing. Its model is under Outputs."],
    [
      { evaluation: {}, training: {} },
      "The job evaluates a model and trains nothing. Its results are in the timeline, and on the page of a registered model.",
    ],
    [{ prepare: {} }, "The job prepares data and trains nothing. The timeline shows what it has stored."],
    [{ replay: {}, training: {} }, "The job computes steps of another job again. Its results are under Outputs."],
  ])("says why there are no charts: %j", async (spec, text) => {
    server.answer("GET /jobs/{job_id}/metrics", NO_POINTS);
    render(<ChartsPanel job={job({ status: "succeeded", resolved_spec: spec })} />);
    expect(await screen.findByText(text)).toBeTruthy();
  });

  it("shows no figures of training that do not exist", () => {
    const shown = { status: "succeeded" as const, progress: null, validation_loss: null };
    const { unmount } = render(<ProgressPanel job={job({ ...shown, resolved_spec: EXPORT })} />);
    expect(screen.queryByText("Training loss")).toBeNull();
    unmount();
    render(<ProgressPanel job={job({ ...shown, resolved_spec: { training: {} } })} />);
    expect(screen.getByText("Training loss")).toBeTruthy();
  });
});
