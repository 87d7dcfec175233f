import { screen } from "@testing-library/react";
import { describe, expect, it, vi } from "vitest";

import { request } from "@/api/client";
import { ProblemNotice } from "@/components/problem-notice";
import { render } from "@/testing/render";
import type { Answer } from "@/testing/server";
import { cut, raw, refuse, server } from "@/testing/server";

async function problemOf(answer: Answer<never>): Promise<unknown> {
  server.answer("GET /queue", answer);
  return request("/queue").catch((error: unknown) => error);
}

describe("problem notice", () => {
  it("shows detail, remedy, code and request of a problem document as an alert", async () => {
    const error = await problemOf(
      refuse(404, { code: "job_not_found", detail: "no job has this id", remedy: "look in the list", request_id: "req_42" }),
    );
    render(<ProblemNotice error={error} />);
    const alert = screen.getByRole("alert");
    expect(alert.textContent).toContain("No job has this id");
    expect(alert.textContent).toContain("Look in the list");
    expect(alert.textContent).toContain("job_not_found · request req_42");
  });

  it("shows each field's error with its pointer, and / for the document as such", async () => {
    const errors = [
      { pointer: "/name", code: "invalid", detail: "is too long" },
      { pointer: "", code: "required", detail: "needs a version" },
    ];
    render(<ProblemNotice error={await problemOf(refuse(422, { code: "invalid_spec", detail: "refused", errors }))} />);
    expect(screen.getByText("/name").parentElement?.textContent).toBe("/name is too long");
    expect(screen.getByText("/").parentElement?.textContent).toBe("/ needs a version");
  });

  it("takes the title where there is no detail, and the request id from the header", async () => {
    const refusal = refuse(429, { code: "rate_limited", title: "too many requests" }, { "X-Request-ID": "req_7", "Retry-After": "30" });
    render(<ProblemNotice error={await problemOf(refusal)} />);
    expect(screen.getByText("Too many requests")).toBeTruthy();
    expect(screen.getByText("rate_limited · request req_7")).toBeTruthy();
  });

  it("names the status when a proxy answers with HTML", async () => {
    render(<ProblemNotice error={await problemOf(raw(502, "<h1>Bad gateway</h1>", { "Content-Type": "text/html" }))} />);
    expect(screen.getByText("The server answered 502.")).toBeTruthy();
    expect(screen.getByText("http_502")).toBeTruthy();
  });

  it("names the status when the problem document is cut off", async () => {
    const broken = raw(500, '{"code": "bro', { "Content-Type": "application/problem+json" });
    render(<ProblemNotice error={await problemOf(broken)} />);
    expect(screen.getByText("The server answered 500.")).toBeTruthy();
  });

  it("shows that the server does not answer when the connection is cut", async () => {
    render(<ProblemNotice error={await problemOf(cut())} />);
    expect(screen.getByText("The server does not answer.")).toBeTruthy();
    expect(screen.getByText("offline")).toBeTruthy();
  });

  it("offers another try only where there is one", async () => {
    const onRetry = vi.fn();
    const { user, rerender } = render(<ProblemNotice error={new Error("broken")} />);
    expect(screen.queryByRole("button")).toBeNull();
    rerender(<ProblemNotice error={new Error("broken")} onRetry={onRetry} />);
    await user.click(screen.getByRole("button", { name: "Try again" }));
    expect(onRetry).toHaveBeenCalledOnce();
  });

  it("has words for what is no error object", () => {
    render(<ProblemNotice error="boom" />);
    expect(screen.getByRole("alert").textContent).toContain("An unknown error.");
  });
});
