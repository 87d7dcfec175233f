import { screen, waitFor } from "@testing-library/react";
import { describe, expect, it } from "vitest";

import { LogsTab } from "@/features/job/components/logs-tab";
import { attempt, job } from "@/testing/documents";
import { render } from "@/testing/render";
import type { Call } from "@/testing/server";
import { server } from "@/testing/server";

const LOGS = "GET /jobs/{job_id}/logs";
const ENDED = { status: "failed", finished_at: "2026-01-01T00:00:00Z" } as const;

function line(cursor: number, text: string) {
  return { cursor, time: "2026-01-01T00:00:00Z", attempt: 1, rank: 0, stream: "stdout", text };
}

/** A log of three pages, read from its end. */
function answer({ query }: Call) {
  const before = query["before"] === undefined ? 4 : Number(query["before"]);
  const items = before > 2 ? [line(2, "third"), line(3, "fourth")] : [line(before - 1, before === 2 ? "second" : "first")];
  return { items, next_after: 3, next_before: before > 2 ? 2 : before === 2 ? 1 : null };
}

describe("logs", () => {
  it("loads earlier lines up to the first", async () => {
    server.answer(LOGS, answer);
    const { user } = render(<LogsTab job={job(ENDED)} />);
    expect(await screen.findByText("fourth")).toBeTruthy();
    await user.click(screen.getByRole("button", { name: "Load earlier lines" }));
    expect(await screen.findByText("second")).toBeTruthy();
    await user.click(screen.getByRole("button", { name: "Load earlier lines" }));
    expect(await screen.findByText("first")).toBeTruthy();
    await waitFor(() => expect(screen.queryByRole("button", { name: "Load earlier lines" })).toBeNull());
    const shown = screen.getByRole("log").textContent;
    expect(["first", "second", "third", "fourth"].map((text) => shown.indexOf(text))).toEqual(
      ["first", "second", "third", "fourth"].map((text) => shown.indexOf(text)).sort((a, b) => a - b),
    );
  });

  it("reads one attempt, and downloads what is filtered", async () => {
    server.answer(LOGS, answer);
    const attempts = [attempt({ number: 1 }), attempt({ number: 2 })];
    const { user } = render(<LogsTab job={job({ ...ENDED, attempts, attempt_count: 2 })} />);
    await screen.findByText("fourth");
    await user.selectOptions(screen.getByLabelText("Attempt"), "2");
    await waitFor(() => expect(server.calls(LOGS).at(-1)?.query["attempt"]).toBe("2"));
    const link = screen.getByRole("link", { name: "Download log" });
    expect(link.getAttribute("href")).toBe("/api/v1/jobs/job_1/logs:download?attempt=2");
  });
});
