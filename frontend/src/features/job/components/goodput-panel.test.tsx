import { screen, within } from "@testing-library/react";
import { describe, expect, it } from "vitest";

import type { Goodput } from "@/api/types";
import { GoodputPanel } from "@/features/job/components/goodput-panel";
import { job } from "@/testing/documents";
import { render } from "@/testing/render";
import { server } from "@/testing/server";

const CATEGORIES: Goodput["categories"] = [
  {
    activity: "startup",
    slot_seconds: 40,
    share: 0.1,
    cost: 40_000,
    phases: [
      { phase: "first_step", slot_seconds: 10, cost: 10_000 },
      { phase: "launch", slot_seconds: 30, cost: 30_000 },
    ],
  },
  { activity: "training", slot_seconds: 280, share: 0.7, cost: 2_800_000, phases: [] },
  { activity: "lost", slot_seconds: 40, share: 0.1, cost: 400_000, phases: [] },
  { activity: "idle", slot_seconds: 20, share: 0.05, cost: 200_000, phases: [] },
  { activity: "unattributed", slot_seconds: 20, share: 0.05, cost: 200_000, phases: [] },
];
const LOSS: Goodput["interruptions"][number] = {
  attempt: 1,
  time: "2026-03-01T10:01:00Z",
  in_place: true,
  reason: { code: "process_killed", message: "A process was killed. Rank 1 was killed by SIGKILL", remedy: "", blame: "infrastructure", runbook: "" },
  node: "gpu-1",
  steps_lost: 17,
  lost_slot_seconds: 40,
  stalled_slot_seconds: 0,
  startup_slot_seconds: 20,
  cost: 420_000,
  refunded: 0,
};
const GOODPUT: Goodput = {
  currency: "EUR",
  slot_seconds: 400,
  goodput: 0.7,
  cost: 3_640_000,
  refunded: 600_000,
  charged: 3_040_000,
  categories: CATEGORIES,
  attempts: [
    {
      attempt: 1,
      start: "2026-03-01T10:00:00Z",
      end: "2026-03-01T10:01:40Z",
      metered_until: "2026-03-01T10:01:40Z",
      slots: 4,
      slot_seconds: 400,
      goodput: 0.7,
      cost: 3_640_000,
      refunded: 600_000,
      categories: CATEGORIES,
    },
  ],
  interruptions: [LOSS],
  checkpoint_interval: null,
};

const texts = (row: HTMLElement) => [...row.children].map((cell) => cell.textContent);

describe("goodput", () => {
  it("splits slot time and cost by activity, a start-up in the order of its phases", async () => {
    server.answer("GET /jobs/{job_id}/goodput", GOODPUT);
    render(<GoodputPanel job={job()} />);
    const table = await screen.findByRole("table", { name: "Slot time by activity" });
    expect(within(table).getAllByRole("row").map(texts)).toEqual([
      ["Activity", "Slot time", "Share", "Cost, EUR"],
      ["Start-up", "40 s", "10%", "0.04"],
      ["launch", "30 s", "", "0.03"],
      ["first step", "10 s", "", "0.01"],
      ["Training", "4m 40s", "70%", "2.80"],
      ["Lost, not saved", "40 s", "10%", "0.40"],
      ["Idle nodes", "20 s", "5%", "0.20"],
      ["Not known", "20 s", "5%", "0.20"],
      ["Total", "6m 40s", "", "3.64"],
    ]);
    const bar = screen.getByRole("img", {
      name: "Start-up: 10%, Training: 70%, Lost, not saved: 10%, Idle nodes: 5%, Not known: 5%",
    });
    expect([...bar.children].map((part) => (part as HTMLElement).style.width)).toEqual(["10%", "70%", "10%", "5%", "5%"]);
    expect(screen.getByText(/of the slot time was productive/).textContent).toBe(
      "70% of the slot time was productive. 3.04 EUR charged, 0.60 EUR refunded.",
    );
  });

  it("lists each interruption with its cause, node, blame and cost, and says what is not known", async () => {
    const end = {
      ...LOSS,
      time: "2026-03-01T10:01:40Z",
      in_place: false,
      reason: null,
      node: null,
      steps_lost: null,
      lost_slot_seconds: 0,
      stalled_slot_seconds: 30,
      refunded: 600_000,
    };
    server.answer("GET /jobs/{job_id}/goodput", { ...GOODPUT, interruptions: [LOSS, end] });
    render(<GoodputPanel job={job()} />);
    const [killed, unknown] = await screen.findAllByRole("listitem");
    expect(killed?.textContent).toMatch(/^A process was killed. Rank 1 was killed by SIGKILL0.42 EUR/);
    expect(killed?.textContent).toMatch(/Attempt 1, restarted in place · .+ · node gpu-1 · blame: infrastructure/);
    expect(killed?.textContent).toMatch(/Steps repeated: 17 · 40 s lost, 20 s start-up$/);
    expect(unknown?.textContent).toMatch(/^Cause not known0.42 EUR/);
    expect(unknown?.textContent).toMatch(/Attempt 1 · .+ · node not known · blame: not known/);
    expect(unknown?.textContent).toMatch(/Steps repeated: not known · 30 s without progress, 20 s start-up · 0.60 EUR refunded$/);
  });
});
