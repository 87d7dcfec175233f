import { screen, waitFor, within } from "@testing-library/react";
import { beforeEach, describe, expect, it } from "vitest";

import { VersionsPanel } from "@/features/datasets/components/versions-panel";
import { dataset } from "@/testing/dataset-documents";
import { page } from "@/testing/documents";
import { render } from "@/testing/render";
import { server } from "@/testing/server";

const FIRST = dataset({ aliases: ["reviewed"] });
const SECOND = dataset({ id: "dset_2", version: 2, spec_source: "dataset:chats@2" });
const DIFF = "GET /datasets/{dataset_id}/diff";

describe("versions of a data set", () => {
  beforeEach(() => {
    server.answer("GET /datasets", page(FIRST, SECOND));
  });

  it("lists all versions of this data set, newest first, with their aliases", async () => {
    render(<VersionsPanel dataset={SECOND} />);
    const rows = within(await screen.findByRole("table", { name: "Versions" })).getAllByRole("row");
    const cells = rows.slice(1).map((row) => within(row).getAllByRole("cell").slice(0, 2).map((cell) => cell.textContent));
    expect(cells).toEqual([
      ["2 (this one)", ""],
      ["1", "reviewed"],
    ]);
    expect(server.calls("GET /datasets")[0]?.query).toMatchObject({ name: "chats", team: "red", versions: "all" });
  });

  it("compares a version with the one that is shown, and says what was not compared", async () => {
    const diff = {
      before: FIRST, after: SECOND, added: ["b.jsonl"], removed: [], changed: [], same: [], unknown: ["c.txt"],
      rows: { added: 4, removed: 1, common: 5 }, note: "Rows of parquet are not compared.",
    };
    server.answer(DIFF, diff);
    const { user } = render(<VersionsPanel dataset={SECOND} />);
    await user.click(await screen.findByRole("button", { name: "Compare" }));
    expect(await screen.findByText("Rows: 4 added, 1 removed, 5 in both.")).toBeTruthy();
    expect(screen.getByText("1 file added: b.jsonl")).toBeTruthy();
    expect(screen.getByText("1 file of equal size, not compared: c.txt")).toBeTruthy();
    expect(screen.getByText("Rows of parquet are not compared.")).toBeTruthy();
    expect(server.calls(DIFF)[0]?.query).toEqual({ from: "dset_1" });
  });

  it("points an alias to a version and removes one", async () => {
    server.answer("PUT /datasets/{dataset_id}/aliases/{alias}", SECOND);
    server.answer("DELETE /datasets/{dataset_id}/aliases/{alias}", null);
    const { user } = render(<VersionsPanel dataset={SECOND} />);
    const [ofSecond] = await screen.findAllByRole("button", { name: "Alias" });
    if (ofSecond === undefined) throw new Error("there is no version");
    await user.click(ofSecond);
    await user.type(await screen.findByLabelText("Name"), "clean");
    await user.click(screen.getByRole("button", { name: "Point" }));
    expect(await screen.findByText("chats@clean is version 2.")).toBeTruthy();
    await waitFor(() => expect(screen.queryByRole("dialog")).toBeNull());
    await user.click(screen.getByRole("button", { name: "Remove the alias reviewed" }));
    expect(await screen.findByText("The alias reviewed is removed.")).toBeTruthy();
  });
});
