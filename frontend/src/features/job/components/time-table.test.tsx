import { screen, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { describe, expect, it } from "vitest";

import type { Timeline } from "@/api/types";
import { ProgressPanel } from "@/features/job/components/progress-panel";
import { TimeTable } from "@/features/job/components/time-table";
import { NOTHING } from "@/lib/format";
import { job, progress, timings } from "@/testing/documents";
import { render } from "@/testing/render";
import { server } from "@/testing/server";

const at = (second: number) => new Date(Date.UTC(2026, 2, 1, 10, 0, second)).toISOString();
const FIRST = timings({ startup_seconds: 4, startup: { first_step: 1, launch: 3 }, training_seconds: 5, lost_seconds: 1 });
const SECOND = timings({ training_seconds: 10 });
const TIMELINE: Timeline = {
  spans: [
    { start: at(0), end: at(10), activity: "queued", phase: "", attempt: null },
    { start: at(10), end: at(13), activity: "startup", phase: "launch", attempt: 1 },
    { start: at(13), end: at(14), activity: "startup", phase: "first_step", attempt: 1 },
    { start: at(14), end: at(19), activity: "training", phase: "", attempt: 1 },
    { start: at(19), end: at(20), activity: "lost", phase: "", attempt: 1 },
    { start: at(20), end: at(30), activity: "paused", phase: "", attempt: null },
    { start: at(30), end: at(40), activity: "training", phase: "", attempt: 2 },
  ],
  timings: timings({
    queued_seconds: 10,
    startup_seconds: 4,
    startup: FIRST.startup,
    training_seconds: 15,
    paused_seconds: 10,
    lost_seconds: 1,
  }),
  attempts: [
    { attempt: 1, timings: FIRST },
    { attempt: 2, timings: SECOND },
  ],
};

/** The rows of the table, as name and time. */
async function rows(): Promise<string[]> {
  const table = await screen.findByRole("table");
  return within(table)
    .getAllByRole("row")
    .map((row) => [...row.children].map((cell) => cell.textContent).join(" "));
}

describe("time breakdown", () => {
  it("adds up what the job spent its time on, start-up in the order of its phases", async () => {
    server.answer("GET /jobs/{job_id}/timeline", TIMELINE);
    render(<TimeTable job={job()} />);
    expect(await rows()).toEqual([
      "Queued 10 s",
      "Start-up 4.0 s",
      "launch 3.0 s",
      "first step 1.0 s",
      "Training 15 s",
      "Paused 10 s",
      "Lost, not saved 1.0 s",
      "Total 40 s",
    ]);
  });

  it("draws waits and each attempt on a line of its own", async () => {
    server.answer("GET /jobs/{job_id}/timeline", TIMELINE);
    render(<TimeTable job={job()} />);
    const chart = await screen.findByRole("list", { name: "Attempts, queue and pauses over time" });
    const lines = within(chart)
      .getAllByRole("listitem")
      .map((line) => [line.firstChild?.textContent, [...line.querySelectorAll("[title]")].map((span) => span.getAttribute("title"))]);
    expect(lines).toEqual([
      ["Queue and pauses", ["Queued: 10 s", "Paused: 10 s"]],
      ["Attempt 1", ["Start-up, launch: 3.0 s", "Start-up, first step: 1.0 s", "Training: 5.0 s", "Lost, not saved: 1.0 s"]],
      ["Attempt 2", ["Training: 10 s"]],
    ]);
    const pause = within(chart).getByTitle("Paused: 10 s");
    expect([pause.style.left, pause.style.width]).toEqual(["50%", "calc(25%)"]);
  });

  it("adds up one attempt on request", async () => {
    server.answer("GET /jobs/{job_id}/timeline", TIMELINE);
    render(<TimeTable job={job()} />);
    await userEvent.click(await screen.findByRole("combobox", { name: "Times of" }));
    await userEvent.click(await screen.findByRole("option", { name: "Attempt 2" }));
    expect(await rows()).toEqual(["Training 10 s", "Total 10 s"]);
  });
});

describe("progress of a job", () => {
  const figure = (name: string) => screen.queryByText(name)?.nextElementSibling?.textContent ?? null;
  const moving = { ...progress(4, 10), eta_seconds: 60, phase: "done" };

  it("of a paused job shows what it ran, no time left and no phase of its trainer", () => {
    render(<ProgressPanel job={job({ status: "paused", progress: moving, ran_seconds: 125, running_since: null })} />);
    expect(figure("Ran for")).toBe("2m 05s");
    expect(figure("Time left")).toBeNull();
    expect(screen.queryByText(/done/)).toBeNull();
  });

  it("of a running job adds the present attempt", () => {
    const running_since = new Date(Date.now() - 60_000).toISOString();
    render(<ProgressPanel job={job({ progress: moving, ran_seconds: 120, running_since })} />);
    expect(figure("Ran for")).toBe("3m 00s");
    expect(figure("Time left")).toBe("1m 00s");
  });

  it.each([
    [12, 60, true],
    [60, 60, false],
  ])("of a job that succeeded at step %i of %i says whether it ended early", (step, steps, early) => {
    render(<ProgressPanel job={job({ status: "succeeded", progress: progress(step, steps), running_since: null })} />);
    expect(screen.queryByText(/ended early/) !== null).toBe(early);
  });

  it("of a job that never ran shows none", () => {
    render(<ProgressPanel job={job({ status: "queued", running_since: null })} />);
    expect(figure("Ran for")).toBe(NOTHING);
  });
});
