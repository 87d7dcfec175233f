import { screen } from "@testing-library/react";
import { describe, expect, it } from "vitest";

import type { JobStatus } from "@/api/types";
import { StatusBadge } from "@/components/status-badge";
import { TimeAgo } from "@/components/time-ago";
import { render } from "@/testing/render";

const NOW = Date.parse("2026-03-01T12:00:00Z");

describe("status badge", () => {
  it.each<[JobStatus, string, string]>([
    ["queued", "Queued", "waiting"],
    ["running", "Running", "active"],
    ["succeeded", "Succeeded", "good"],
    ["failed", "Failed", "bad"],
    ["cancelled", "Cancelled", "muted"],
  ])("shows %s as the word %s in the tone %s", (status, word, tone) => {
    render(<StatusBadge status={status} />);
    const badge = screen.getByText(word);
    expect(badge.dataset.tone).toBe(tone);
    expect(badge.dataset.status).toBe(status);
  });

  it("draws a sign of its own for success and failure, hidden from screen readers", () => {
    const signOf = (status: JobStatus) => {
      const { container, unmount } = render(<StatusBadge status={status} />);
      const sign = container.querySelector("svg[aria-hidden=true] path")?.getAttribute("d") ?? "no sign";
      unmount();
      return sign;
    };
    expect(new Set([signOf("succeeded"), signOf("failed"), signOf("running")]).size).toBe(3);
  });
});

describe("time ago", () => {
  it("shows the distance, with the exact time for machines and on hover", () => {
    render(<TimeAgo time="2026-03-01T10:00:00Z" now={NOW} />);
    const time = screen.getByText(/2 ?h/);
    expect(time.getAttribute("datetime")).toBe("2026-03-01T10:00:00Z");
    expect(time.title).toContain("2026");
  });

  it("moves with the clock of the page", () => {
    const { rerender } = render(<TimeAgo time="2026-03-01T12:00:00Z" now={NOW} />);
    const first = screen.getByRole("time").textContent;
    rerender(<TimeAgo time="2026-03-01T12:00:00Z" now={NOW + 3 * 86_400_000} />);
    expect(screen.getByRole("time").textContent).not.toBe(first);
  });

  it("shows a dash where there is no time", () => {
    render(<TimeAgo time={null} now={NOW} />);
    expect(screen.getByText("–")).toBeTruthy();
    expect(screen.queryByRole("time")).toBeNull();
  });
});
