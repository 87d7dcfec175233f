import { screen, waitFor } from "@testing-library/react";
import { describe, expect, it } from "vitest";

import { DataPolicyPanel } from "@/features/team/components/data-policy-panel";
import { render } from "@/testing/render";
import { server } from "@/testing/server";

const TEAM = {
  id: "team_1",
  name: "red",
  max_running_jobs: null,
  max_slots: null,
  requires_data_report: false,
  created_at: "2026-01-02T03:04:05Z",
};
const LABEL = /^Require a data report without critical findings/;

describe("data policy", () => {
  it("is set by administrators of the team", async () => {
    server.answer("GET /teams/{team_id}", TEAM);
    server.answer("PUT /teams/{team_id}/data-policy", { ...TEAM, requires_data_report: true });
    const { user } = render(<DataPolicyPanel teamId="team_1" manages />);
    await user.click(await screen.findByRole("switch", { name: LABEL }));
    await waitFor(() => expect(server.calls("PUT /teams/{team_id}/data-policy")).toHaveLength(1));
    expect(server.calls("PUT /teams/{team_id}/data-policy")[0]?.json).toEqual({ requires_data_report: true });
  });

  it("is shown to others", async () => {
    server.answer("GET /teams/{team_id}", { ...TEAM, requires_data_report: true });
    render(<DataPolicyPanel teamId="team_1" manages={false} />);
    const shown = await screen.findByRole<HTMLInputElement>("switch", { name: LABEL });
    expect([shown.checked, shown.disabled]).toEqual([true, true]);
  });
});
