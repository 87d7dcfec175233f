import { screen, waitFor } from "@testing-library/react";
import { describe, expect, it } from "vitest";

import { ProjectsPanel } from "@/features/team/components/projects-panel";
import { page } from "@/testing/documents";
import { render } from "@/testing/render";
import { refuse, server } from "@/testing/server";

const CREATE = "POST /projects";

function open(writes: boolean) {
  server.answer("GET /projects", page());
  return render(<ProjectsPanel teamId="team_1" teamName="red" writes={writes} manages={false} />);
}

describe("projects", () => {
  it("are created by name, and a refusal is shown at the field", async () => {
    const errors = [{ pointer: "/name", code: "taken", detail: "the team has one of this name" }];
    server.answer(CREATE, refuse(422, { code: "invalid", detail: "refused", errors }));
    const { user } = open(true);
    await user.click(await screen.findByRole("button", { name: "New project" }));
    await user.type(screen.getByLabelText("Name"), "vision");
    await user.click(screen.getByRole("button", { name: "Create" }));
    await waitFor(() => expect(screen.getByLabelText("Name").getAttribute("aria-invalid")).toBe("true"));
    expect(server.calls(CREATE)[0]?.json).toEqual({ team: "red", name: "vision" });
  });

  it("are not created by viewers", async () => {
    open(false);
    await screen.findByText("No projects yet");
    expect(screen.queryByRole("button", { name: "New project" })).toBeNull();
  });
});
