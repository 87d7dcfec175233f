import { screen, waitFor, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { describe, expect, it } from "vitest";

import { JobsPage } from "@/features/jobs/components/jobs-page";
import { jobSummary, page, progress, session } from "@/testing/documents";
import { render } from "@/testing/render";
import { held, refuse, server } from "@/testing/server";
import { member, project } from "@/testing/team-documents";

const LIST = "GET /jobs";

function open(at = "/jobs") {
  return render(<JobsPage />, { at });
}

function rowOf(name: string): HTMLElement {
  return screen.getByRole("link", { name }).closest("tr") as HTMLElement;
}

describe("jobs page", () => {
  it("shows that it loads, then a row for each job with a link to its page", async () => {
    const answer = held<ReturnType<typeof page<ReturnType<typeof jobSummary>>>>();
    server.answer("GET /session", session());
    server.answer(LIST, answer.answer);
    open();
    expect(screen.getByLabelText("Loading the jobs").getAttribute("aria-busy")).toBe("true");
    answer.release(page(jobSummary({ id: "job_1", name: "first" }), jobSummary({ id: "job_2", name: "second" })));
    expect((await screen.findByRole("link", { name: "first" })).getAttribute("href")).toBe("/jobs/job_1");
    expect(screen.getAllByRole("row")).toHaveLength(3);
  });

  it("shows progress, loss, and why a job waits", async () => {
    const reason = { code: "no_capacity", message: "all slots are taken", remedy: "", blame: "platform", runbook: "" };
    server.answer("GET /session", session());
    server.answer(
      LIST,
      page(
        jobSummary({ id: "job_1", name: "busy", progress: progress(20, 80) }),
        jobSummary({ id: "job_2", name: "idle", status: "queued", reason }),
      ),
    );
    open();
    const bar = await screen.findByRole("progressbar", { name: "Progress of busy" });
    expect([bar.getAttribute("aria-valuenow"), bar.getAttribute("aria-valuemax")]).toEqual(["20", "80"]);
    expect(within(rowOf("busy")).getByText("2.5000")).toBeTruthy();
    expect(within(rowOf("idle")).getByText("no capacity").title).toBe("all slots are taken");
  });

  it("shows the newest training loss and the last validation loss apart, and the mean rate", async () => {
    const busy = { ...progress(20, 80), loss: 6, validation_loss: 7.6404, mean_tokens_per_second: 10_700, tokens_per_second: 8100 };
    server.answer("GET /session", session());
    server.answer(
      LIST,
      page(jobSummary({ name: "busy", progress: busy, validation_loss: { before: 7.6404, after: 7.6404 } })),
    );
    open();
    await screen.findByRole("link", { name: "busy" });
    const headings = screen.getAllByRole("columnheader").map((cell) => cell.textContent);
    const cells = within(rowOf("busy")).getAllByRole("cell");
    const shown = (heading: string) => cells[headings.indexOf(heading)]?.textContent;
    expect(shown("Training loss")).toBe("6.0000");
    expect(shown("Validation loss")).toBe("7.6404");
    expect(shown("Tokens/s, mean")).toBe("10.7k");
  });

  it("takes its filters from the address and asks the server for exactly them", async () => {
    server.answer("GET /session", session());
    server.answer(LIST, page(jobSummary()));
    open("/jobs?status=failed&q=tiny&team=red");
    await screen.findByRole("link", { name: "tiny" });
    expect(server.calls(LIST)[0]?.query).toMatchObject({ status: "failed,expired", q: "tiny", team: "red" });
    expect(screen.getByRole("searchbox")).toHaveProperty("value", "tiny");
    expect(screen.getByRole("radio", { name: "Failed" })).toHaveProperty("checked", true);
  });

  it("ignores a status in the address that does not exist", async () => {
    server.answer("GET /session", session());
    server.answer(LIST, page(jobSummary()));
    open("/jobs?status=constructor");
    await screen.findByRole("link", { name: "tiny" });
    expect(server.calls(LIST)[0]?.query).not.toHaveProperty("status");
  });

  it("writes a chosen status and a search into the address, and removes them when all are shown", async () => {
    server.answer("GET /session", session());
    server.answer(LIST, page());
    const { user, address } = open();
    await user.click(screen.getByRole("radio", { name: "Succeeded" }));
    expect(address()).toBe("/jobs?status=succeeded");
    await user.type(screen.getByRole("searchbox"), "abc");
    await waitFor(() => expect(address()).toBe("/jobs?status=succeeded&q=abc"));
    await waitFor(() => expect(server.calls(LIST).at(-1)?.query).toMatchObject({ status: "succeeded", q: "abc" }));
    await user.click(await screen.findByRole("button", { name: "Show all jobs" }));
    await waitFor(() => expect(address()).toBe("/jobs"));
    expect(screen.getByRole("searchbox")).toHaveProperty("value", "");
  });

  it("asks once for a word typed without a pause", async () => {
    server.answer("GET /session", session());
    server.answer(LIST, page(jobSummary()));
    const { user } = open();
    await screen.findByRole("link", { name: "tiny" });
    await user.type(screen.getByRole("searchbox"), "word");
    await waitFor(() => expect(server.calls(LIST).map((call) => call.query.q)).toContain("word"));
    expect(server.calls(LIST).map((call) => call.query.q)).toEqual([undefined, "word"]);
  });

  it("moves the focus to the search with /, but not while somebody types a slash", async () => {
    server.answer("GET /session", session());
    server.answer(LIST, page(jobSummary()));
    const { user } = open();
    await screen.findByRole("link", { name: "tiny" });
    await user.keyboard("/");
    const search = screen.getByRole<HTMLInputElement>("searchbox");
    expect(document.activeElement).toBe(search);
    expect(search.value).toBe("");
    await user.keyboard("a/b");
    expect(search.value).toBe("a/b");
  });

  it("walks the rows with the arrow keys and stops at both ends", async () => {
    server.answer("GET /session", session());
    server.answer(LIST, page(jobSummary({ id: "job_1", name: "first" }), jobSummary({ id: "job_2", name: "second" })));
    const { user } = open();
    const first = await screen.findByRole("link", { name: "first" });
    const second = screen.getByRole("link", { name: "second" });
    first.focus();
    await user.keyboard("{ArrowDown}");
    expect(document.activeElement).toBe(second);
    await user.keyboard("{ArrowDown}");
    expect(document.activeElement).toBe(second);
    await user.keyboard("{ArrowUp}{ArrowUp}");
    expect(document.activeElement).toBe(first);
  });

  it("offers a comparison of two or more chosen jobs", async () => {
    server.answer("GET /session", session());
    server.answer(LIST, page(jobSummary({ id: "job_1", name: "first" }), jobSummary({ id: "job_2", name: "second" })));
    const { user } = open();
    await user.click(await screen.findByRole("checkbox", { name: /Select first/ }));
    expect(screen.queryByRole("link", { name: /Compare/ })).toBeNull();
    await user.click(screen.getByRole("checkbox", { name: /Select second/ }));
    expect(screen.getByRole("link", { name: "Compare 2 jobs" }).getAttribute("href")).toBe("/compare?jobs=job_1,job_2");
    await user.click(screen.getByRole("checkbox", { name: /Select first/ }));
    expect(screen.queryByRole("link", { name: /Compare/ })).toBeNull();
  });

  it("loads the next page by the cursor and adds it below", async () => {
    server.answer("GET /session", session());
    server.answer(
      LIST,
      { items: [jobSummary({ id: "job_1", name: "first" })], next_cursor: "abc" },
      page(jobSummary({ id: "job_2", name: "second" })),
    );
    const { user } = open();
    await user.click(await screen.findByRole("button", { name: "Load more" }));
    await screen.findByRole("link", { name: "second" });
    expect(screen.getByRole("link", { name: "first" })).toBeTruthy();
    expect(server.calls(LIST)[1]?.query.cursor).toBe("abc");
    expect(screen.queryByRole("button", { name: "Load more" })).toBeNull();
  });

  it("leads to a new job where there is none, without claiming a filter", async () => {
    server.answer("GET /session", session());
    server.answer(LIST, page());
    open();
    expect(await screen.findByText("No jobs yet")).toBeTruthy();
    expect(screen.getAllByRole("link", { name: "New job" })[0]?.getAttribute("href")).toBe("/jobs/new");
  });

  it("shows a refusal and asks again on demand", async () => {
    server.answer("GET /session", session());
    server.answer(LIST, refuse(503, { code: "database_down", detail: "no database" }), page(jobSummary()));
    const { user } = open();
    await user.click(await screen.findByRole("button", { name: "Try again" }));
    expect(await screen.findByRole("link", { name: "tiny" })).toBeTruthy();
    expect(screen.queryByRole("alert")).toBeNull();
  });
});

describe("the jobs table", () => {
  it("sorts by a heading: smallest first, largest first, newest first again", async () => {
    server.answer("GET /session", session());
    server.answer(LIST, page(jobSummary({ name: "one" })));
    open();
    const heading = await screen.findByRole("columnheader", { name: "Training loss" });
    expect(heading.getAttribute("aria-sort")).toBe("none");
    for (const [sort, state] of [
      ["loss", "ascending"],
      ["-loss", "descending"],
      ["", "none"],
    ]) {
      await userEvent.click(within(screen.getByRole("columnheader", { name: /Training loss/ })).getByRole("button"));
      await waitFor(() => expect(server.calls(LIST).at(-1)?.query.sort ?? "").toBe(sort));
      expect(screen.getByRole("columnheader", { name: /Training loss/ }).getAttribute("aria-sort")).toBe(state);
    }
  });

  it("shows a field of the spec that the address names, and asks for specs only then", async () => {
    const resolved_spec = { training: { optimizer: { lr: 0.003 } } };
    server.answer("GET /session", session());
    server.answer(LIST, page({ ...jobSummary({ name: "one" }), resolved_spec }));
    open("/jobs?columns=loss,spec.training.optimizer.lr,nonsense");
    expect(await screen.findByRole("cell", { name: "0.003" })).toBeTruthy();
    const headings = screen.getAllByRole("columnheader").map((cell) => cell.textContent);
    expect(headings).toEqual(["Job", "Status", "Progress", "Training loss", "training.optimizer.lr"]);
    expect(server.calls(LIST).at(-1)?.query.expand).toBe("resolved_spec");
  });

  it("filters by project, person and label, and says how many filters apply", async () => {
    server.answer("GET /session", session());
    server.answer(LIST, page(jobSummary({ name: "one" })));
    server.answer("GET /projects", page(project("speech")));
    server.answer("GET /teams/{team_id}/members", page(member("grace")));
    open("/jobs?label.kind=odd");
    await userEvent.click(await screen.findByRole("button", { name: "Filters (1)" }));
    await screen.findByRole("option", { name: "grace" });
    await userEvent.selectOptions(screen.getByLabelText("Project"), "speech");
    await userEvent.selectOptions(screen.getByLabelText("Submitted by"), "Me");
    await userEvent.type(screen.getByRole("combobox", { name: "Labels" }), "odd{Enter}");
    expect(await screen.findByText("odd: write key=value")).toBeTruthy();
    await screen.findByRole("button", { name: "Filters (3)" });
    await waitFor(() =>
      expect(server.calls(LIST).at(-1)?.query).toMatchObject({
        project: "speech",
        created_by: "@me",
        "label.kind": "odd",
      }),
    );
  });
});
