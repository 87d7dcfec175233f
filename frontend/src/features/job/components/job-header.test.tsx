import { screen, within } from "@testing-library/react";
import { describe, expect, it } from "vitest";

import type { Job, Wait } from "@/api/types";
import { Attempts } from "@/features/job/components/attempts";
import { JobFacts, JobOutcome } from "@/features/job/components/job-header";
import { Timeline } from "@/features/job/components/timeline";
import { WaitCard } from "@/features/job/components/wait-card";
import { attempt, event, job, wait } from "@/testing/documents";
import { render } from "@/testing/render";
import { refuse, server } from "@/testing/server";

const REASON = {
  code: "out_of_memory", message: "the process ran out of memory", remedy: "use smaller batches", blame: "user",
  runbook: "/docs/runbooks/reasons/out_of_memory",
};

describe("job facts", () => {
  it("shows status, place, id and the job that it was forked from", () => {
    const { container } = render(<JobFacts job={job({ id: "job_abc", forked_from: "job_parent", labels: { run: "a" } })} />);
    expect(container.querySelector("[data-status=running]")).not.toBeNull();
    expect(screen.getByText("red / default")).toBeTruthy();
    expect(screen.getByText("job_abc")).toBeTruthy();
    expect(screen.getByRole("link").getAttribute("href")).toBe("/jobs/job_parent");
    expect(screen.getByText("run=a")).toBeTruthy();
  });

  it.each([
    ["running", "straggling", true],
    ["running", "ok", false],
    ["failed", "hung", false],
  ] as const)("of a %s job whose health is %s mentions the health: %s", (status, health, isShown) => {
    render(<JobFacts job={job({ status, health })} />);
    expect(screen.queryByText(/^(Straggling|Ok|Hung)$/) !== null).toBe(isShown);
  });
});

describe("outcome of a job", () => {
  it("shows cause, remedy and code of a failure", () => {
    render(<JobOutcome job={job({ status: "failed", reason: REASON })} />);
    const card = screen.getByRole("note");
    expect(card.dataset.tone).toBe("bad");
    expect([...card.querySelectorAll("p")].map((each) => each.textContent)).toEqual([
      "The process ran out of memory",
      "Use smaller batches",
      "out_of_memory",
    ]);
  });

  it("links to the runbook of the reason, which the server serves", () => {
    const { rerender } = render(<JobOutcome job={job({ status: "failed", reason: REASON })} />);
    expect(screen.getByRole("link", { name: "Runbook" }).getAttribute("href")).toBe(REASON.runbook);
    rerender(<JobOutcome job={job({ status: "failed", reason: { ...REASON, runbook: "" } })} />);
    expect(screen.queryByRole("link")).toBeNull();
  });

  it("names the code in words when the reason has no message", () => {
    render(<JobOutcome job={job({ status: "failed", reason: { ...REASON, message: "" } })} />);
    expect(screen.getByText("Out of memory")).toBeTruthy();
  });

  it("says nothing of a plain success", () => {
    render(<JobOutcome job={job({ status: "succeeded", reason: { ...REASON, code: "completed" } })} />);
    expect(screen.queryByRole("note")).toBeNull();
  });

  it("says what keeps the cluster from starting it, until it has started", () => {
    const explanation = "Pod a-0 on n1 cannot be started. ImagePullBackOff";
    const attempts = [attempt({ phase: "starting", explanation })];
    const { rerender } = render(<JobOutcome job={job({ status: "starting", attempts })} />);
    expect(screen.getByText(`iron: ${explanation}`)).toBeTruthy();
    rerender(<JobOutcome job={job({ status: "running", attempts })} />);
    expect(screen.queryByRole("note")).toBeNull();
    rerender(<JobOutcome job={job({ status: "starting", attempts: [attempt({ phase: "running", explanation })] })} />);
    expect(screen.queryByRole("note")).toBeNull();
  });

  it("shows warnings until the job has ended", () => {
    const warnings = [{ pointer: "/training", code: "slow", detail: "this will be slow" }];
    const { rerender } = render(<JobOutcome job={job({ warnings })} />);
    expect(screen.getByText("This will be slow")).toBeTruthy();
    rerender(<JobOutcome job={job({ warnings, status: "cancelled" })} />);
    expect(screen.queryByText("This will be slow")).toBeNull();
  });
});

describe("wait card", () => {
  const blocked = (part: Partial<Wait> = {}): Partial<Job> => ({
    status: "queued",
    wait: wait({
      blocker: { kind: "pool", name: "gpu", lacking: 2, held_by: [{ team: "blue", slots: 8 }], own_jobs: ["job_own"] },
      unblocks: "When job x ends.",
      position: 2,
      of: 7,
      ...part,
    }),
  });

  it("shows the blocker, the place, the holders and the team's own jobs among them", () => {
    render(<WaitCard job={job(blocked())} />);
    const facts = screen.getAllByRole("definition").map((each) => each.textContent);
    expect(facts).toContain("2 of 7");
    expect(facts).toContain("slots of pool gpu, 2 slots missing");
    expect(facts).toContain("blue 8 slots");
    expect(screen.getByText("When job x ends.")).toBeTruthy();
    const links = screen.getAllByRole("link").map((each) => each.getAttribute("href"));
    expect(links).toEqual(["/jobs/job_own", "/queue"]);
  });

  it("shows an expected start only where there is an estimate", () => {
    const { rerender } = render(<WaitCard job={job(blocked())} />);
    const before = screen.getAllByRole("definition").length;
    rerender(<WaitCard job={job(blocked({ p50_seconds: 300, p90_seconds: 900 }))} />);
    expect(screen.getAllByRole("definition")).toHaveLength(before + 1);
    expect(screen.getByText(/5m 00s/).textContent).toContain("15m 00s");
  });

  it("is not there for a job that does not wait, or is to pause or stop", () => {
    const { rerender } = render(<WaitCard job={job({ wait: null })} />);
    expect(screen.queryByRole("region")).toBeNull();
    rerender(<WaitCard job={job({ ...blocked(), desired: "pause" })} />);
    expect(screen.queryByRole("region")).toBeNull();
    rerender(<WaitCard job={job(blocked())} />);
    expect(screen.getByRole("region")).toBeTruthy();
  });
});

describe("attempts", () => {
  it("lists the newest first, with the reason and the last step of each", () => {
    const attempts = [
      attempt({ number: 1, status: "ended", reason: { ...REASON, message: "a node was lost" }, last_step: 40 }),
      attempt({ number: 2, nodes: ["n1", "n2"] }),
    ];
    render(<Attempts job={job({ attempts })} />);
    const [newest, oldest] = screen.getAllByRole("listitem");
    expect(newest?.textContent).toContain("Attempt 2");
    expect(newest?.textContent).toContain("n1, n2");
    expect(oldest?.textContent).toContain("A node was lost");
    expect(oldest?.textContent).toContain("to step 40");
  });

  it("shows the cluster's own words, and its phase only until the attempt has ended", () => {
    const words = { native_state: "PENDING", native_reason: "Resources", phase: "queued" };
    const { rerender } = render(<Attempts job={job({ attempts: [attempt(words)] })} />);
    expect(screen.getByText("PENDING · Resources")).toBeTruthy();
    expect(screen.getByText("Queued")).toBeTruthy();
    rerender(<Attempts job={job({ attempts: [attempt({ ...words, finished_at: "2026-03-01T11:00:00Z" })] })} />);
    expect(screen.queryByText("Queued")).toBeNull();
  });

  it("loads the output of an attempt only when it is opened, and says why it cannot", async () => {
    const route = "GET /jobs/{job_id}/attempts/{attempt_number}/output";
    server.answer(route, refuse(404, { code: "no_output", detail: "it stored none" }));
    const { user } = render(<Attempts job={job({ status: "failed", attempts: [attempt({ number: 3 })] })} />);
    expect(server.calls(route)).toHaveLength(0);
    const button = screen.getByRole("button", { name: /output of attempt 3/ });
    await user.click(button);
    expect((await screen.findByRole("alert")).textContent).toContain("It stored none");
    expect(button.getAttribute("aria-expanded")).toBe("true");
    expect(server.calls(route)[0]?.path).toContain("/attempts/3/output");
    await user.click(button);
    expect(screen.queryByRole("alert")).toBeNull();
  });
});

describe("timeline", () => {
  it("shows events newest first, with who did it where that is a person", () => {
    render(
      <Timeline
        events={[event(1), event(2, { type: "job.status", actor: "scheduling", data: { to: "running" } })]}
      />,
    );
    const [newest, oldest] = screen.getAllByRole("listitem");
    expect(within(newest as HTMLElement).getByText("Running").closest("li")?.dataset.tone).toBe("active");
    expect(newest?.textContent).not.toContain("scheduling");
    expect(oldest?.textContent).toContain("ada");
  });

  it("shows the newest sixteen, and all when asked", async () => {
    const events = Array.from({ length: 20 }, (_, at) => event(at, { type: "note", message: `note ${at}` }));
    const { user } = render(<Timeline events={events} />);
    expect(screen.getAllByRole("listitem")).toHaveLength(16);
    expect(screen.queryByText("Note 0")).toBeNull();
    await user.click(screen.getByRole("button", { name: "Show all 20" }));
    expect(screen.getByText("Note 0")).toBeTruthy();
  });

  it("shows that there are none yet", () => {
    render(<Timeline events={[]} />);
    expect(screen.queryByRole("list")).toBeNull();
    expect(screen.getByText(/No events/)).toBeTruthy();
  });
});
