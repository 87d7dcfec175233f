import { screen, waitFor } from "@testing-library/react";
import { describe, expect, it } from "vitest";

import type { ClusterSetup, Pool } from "@/api/types";
import { PoolsPanel } from "@/features/clusters/components/pools-panel";
import { cluster } from "@/testing/documents";
import { render } from "@/testing/render";
import { refuse, server } from "@/testing/server";

const PUT = "PUT /clusters/{cluster_id}/pools/{pool_name}";
const POOL: Pool = {
  name: "gpu",
  accelerator: "h100",
  nodes: 2,
  spare_nodes: 0,
  slots_per_node: 8,
  slots: 16,
  slots_used: 0,
  memory_bytes: 2 ** 40 + 12345,
  accelerator_memory_bytes: null,
  price_per_slot_hour: 2.5,
  currency: "USD",
};

const SETUP: ClusterSetup = {
  config: {},
  config_problems: [],
  capabilities: [],
  preflight_after_incidents: true,
  preflight_every_hours: null,
  probe: null,
  nodes_at: null,
  nodes_problem: "",
  suspects: [],
  proposed_pools: [],
};

async function edit(pool: Pool) {
  server.answer(PUT, pool);
  const { user } = render(<PoolsPanel cluster={cluster({ pools: [pool], setup: SETUP })} />);
  await user.click(screen.getByRole("button", { name: "Change pool gpu" }));
  return user;
}

describe("the dialog of a pool", () => {
  it("saves the memory that it shows rounded as it was", async () => {
    const user = await edit({ ...POOL, accelerator_memory_bytes: 80 * 2 ** 30 + 1 });
    await user.click(await screen.findByRole("button", { name: "Save" }));
    await waitFor(() => expect(server.calls(PUT)).toHaveLength(1));
    const { memory_bytes, accelerator_memory_bytes } = server.calls(PUT)[0]?.json as Pool;
    expect([memory_bytes, accelerator_memory_bytes]).toEqual([2 ** 40 + 12345, 80 * 2 ** 30 + 1]);
  });

  it("shows spare nodes beside the nodes, changes them, and keeps them with other changes", async () => {
    const user = await edit({ ...POOL, spare_nodes: 1 });
    expect(screen.getByRole("cell", { name: "2, 1 spare" })).toBeTruthy();
    const field = await screen.findByLabelText("Spare nodes");
    expect(field).toHaveProperty("value", "1");
    await user.clear(field);
    await user.type(field, "0");
    await user.click(screen.getByRole("button", { name: "Save" }));
    await waitFor(() => expect(server.calls(PUT)).toHaveLength(1));
    expect((server.calls(PUT)[0]?.json as Pool).spare_nodes).toBe(0);
  });

  it("shows why a number of spare nodes is refused at its field", async () => {
    const { user } = render(<PoolsPanel cluster={cluster({ pools: [POOL], setup: SETUP })} />);
    const detail = "spare_nodes 2 of 2 nodes of pool 'gpu' leaves no node for jobs; set spare_nodes to at most 1";
    const errors = [{ pointer: "/spare_nodes", code: "too_many_spare_nodes", detail }];
    server.answer(PUT, refuse(422, { code: "invalid", errors }));
    await user.click(screen.getByRole("button", { name: "Change pool gpu" }));
    await user.click(await screen.findByRole("button", { name: "Save" }));
    expect(await screen.findByText(detail)).toBeTruthy();
  });

  it("sets the memory of an accelerator in GiB, which the table shows as unknown before", async () => {
    const user = await edit(POOL);
    expect(screen.getByRole("cell", { name: "–" })).toBeTruthy();
    await user.type(await screen.findByLabelText("Memory per accelerator, GiB"), "80");
    await user.click(screen.getByRole("button", { name: "Save" }));
    await waitFor(() => expect(server.calls(PUT)).toHaveLength(1));
    expect((server.calls(PUT)[0]?.json as Pool).accelerator_memory_bytes).toBe(80 * 2 ** 30);
  });
});
