import { fireEvent, screen, waitFor, within } from "@testing-library/react";
import { expect, it } from "vitest";

import type { NodePreflight } from "@/api/types";
import { NodePreflights } from "@/features/clusters/components/node-preflights";
import { render } from "@/testing/render";
import { server } from "@/testing/server";

const RUNNING: NodePreflight = {
  id: "pre_2", cause: "manual", actor: "ada", outcome: "", detail: "", pool: "gpu",
  created_at: "2026-03-01T10:00:00Z", submitted_at: null, ended_at: null, report: null,
};
const OLDER: NodePreflight = {
  ...RUNNING, id: "pre_1", cause: "incident", actor: "", outcome: "stopped", detail: "a job needed the slots",
};
const LIST = "GET /clusters/{cluster_id}/nodes/{node_name}/preflights";

it("starts a preflight, shows that it runs, and the history", async () => {
  server.answer(LIST, { items: [], next_cursor: null });
  server.answer("POST /clusters/{cluster_id}/nodes/{node_name}:preflight", RUNNING);
  render(<NodePreflights clusterId="cls_1" name="n1" />);
  await screen.findByText(/has not been measured/);
  server.answer(LIST, { items: [RUNNING, OLDER], next_cursor: null });
  fireEvent.click(screen.getByRole("button", { name: "Measure now" }));
  const rows = within(await screen.findByRole("table", { name: "Preflights" })).getAllByRole("row");
  expect(rows[1]?.textContent).toContain("RunningBy ada");
  expect(rows[2]?.textContent).toContain("StoppedAfter an incidenta job needed the slots");
  await waitFor(() => {
    expect(screen.getByRole("button", { name: "Measure now" }).hasAttribute("disabled")).toBe(true);
  });
});
