import { screen, within } from "@testing-library/react";
import { describe, expect, it } from "vitest";

import { DataTable } from "@/components/data-table";
import { ShownOnce } from "@/components/shown-once";
import { render } from "@/testing/render";

interface Row {
  id: string;
  size: number;
}

const COLUMNS = [
  { name: "Name", cell: (row: Row) => row.id },
  { name: "Size", end: true, cell: (row: Row) => row.size },
  { name: "(Remove)", cell: (row: Row) => <button type="button">Remove {row.id}</button> },
];

describe("data table", () => {
  it("is named, with a header cell for each column and a cell for each value", () => {
    render(<DataTable label="Files" rows={[{ id: "a", size: 1 }, { id: "b", size: 2 }]} columns={COLUMNS} rowKey={(row) => row.id} />);
    const table = screen.getByRole("table", { name: "Files" });
    expect(within(table).getAllByRole("columnheader").map((each) => each.textContent)).toEqual(["Name", "Size", "(Remove)"]);
    const [, first] = within(table).getAllByRole("row");
    expect(within(first as HTMLElement).getAllByRole("cell").map((each) => each.textContent)).toEqual(["a", "1", "Remove a"]);
  });

  it("hides a heading in parentheses from the eye, and gives the others to the narrow layout", () => {
    render(<DataTable label="Files" rows={[{ id: "a", size: 1 }]} columns={COLUMNS} rowKey={(row) => row.id} />);
    expect(screen.getByText("(Remove)").className).toContain("visually-hidden");
    expect(screen.getAllByRole("cell").map((each) => each.dataset.label)).toEqual(["Name", "Size", ""]);
  });

  it("moves a row with its controls when the order changes", () => {
    const table = (...ids: string[]) => (
      <DataTable label="Files" rows={ids.map((id) => ({ id, size: 1 }))} columns={COLUMNS} rowKey={(row) => row.id} />
    );
    const { rerender } = render(table("a", "b"));
    const button = screen.getByRole("button", { name: "Remove b" });
    button.focus();
    rerender(table("b", "a"));
    expect(screen.getByRole("button", { name: "Remove b" })).toBe(button);
  });

  it("has no rows but its headings where there is nothing", () => {
    render(<DataTable label="Files" rows={[]} columns={COLUMNS} rowKey={(row: Row) => row.id} />);
    expect(screen.getAllByRole("row")).toHaveLength(1);
  });
});

describe("a secret shown once", () => {
  it("shows the secret with its use, and copies exactly it", async () => {
    const { user } = render(
      <ShownOnce secret="ath_s3cret" onDone={() => undefined}>
        For the pipeline.
      </ShownOnce>,
    );
    expect(screen.getByText("ath_s3cret").tagName).toBe("CODE");
    expect(screen.getByRole("note").textContent).toBe("For the pipeline.");
    await user.click(screen.getByRole("button", { name: "Copy secret" }));
    expect(await navigator.clipboard.readText()).toBe("ath_s3cret");
  });
});
