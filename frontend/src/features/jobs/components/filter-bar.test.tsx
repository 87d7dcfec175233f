import { screen, waitFor } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { expect, it, vi } from "vitest";

import { FilterBar } from "@/features/jobs/components/filter-bar";
import type { FilterState } from "@/features/jobs/hooks/use-job-filters";
import { NO_FILTERS } from "@/features/jobs/hooks/use-job-filters";
import { render } from "@/testing/render";

function bar(q: string, onChange: (part: Partial<FilterState>) => void) {
  return <FilterBar state={{ ...NO_FILTERS, q }} teams={[]} onChange={onChange} />;
}

it("keeps what is typed while the address still gets the text before", async () => {
  const onChange = vi.fn();
  const { rerender } = render(bar("", onChange));
  const field = screen.getByRole("searchbox");
  await userEvent.type(field, "a");
  await waitFor(() => expect(onChange).toHaveBeenCalledWith({ q: "a" }));
  await userEvent.type(field, "b");
  rerender(bar("a", onChange));
  expect(field).toHaveProperty("value", "ab");
  await waitFor(() => expect(onChange).toHaveBeenLastCalledWith({ q: "ab" }));
  rerender(bar("ab", onChange));
  rerender(bar("a", onChange));
  expect(field).toHaveProperty("value", "a");
});
