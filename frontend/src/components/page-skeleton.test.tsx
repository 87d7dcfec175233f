import { screen } from "@testing-library/react";
import { expect, it, vi } from "vitest";

import { PageSkeleton } from "@/components/page-skeleton";
import { render } from "@/testing/render";

it("has the heading of the page while it is read, and a way to try again after a failure", async () => {
  const onRetry = vi.fn();
  const { user, rerender, container } = render(<PageSkeleton title="Job" error={null} onRetry={onRetry} />);
  expect(screen.getByRole("heading", { name: "Job" })).toBeTruthy();
  expect(container.querySelector("[aria-busy=true]")).toBeTruthy();
  rerender(<PageSkeleton title="Job" error={new Error("no answer")} onRetry={onRetry} />);
  expect(container.querySelector("[aria-busy=true]")).toBeNull();
  await user.click(screen.getByRole("button"));
  expect(onRetry).toHaveBeenCalledOnce();
});
