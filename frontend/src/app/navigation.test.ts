import { describe, expect, it } from "vitest";

import { groupOf, groupsFor } from "@/app/navigation";
import { session } from "@/testing/documents";

const names = (groups: ReturnType<typeof groupsFor>) => groups.flatMap((group) => group.sections.map((each) => each.name));

describe("sections", () => {
  it("are those that the user's roles allow", () => {
    const member = session();
    const withRole = (role: "viewer" | "admin") => ({ ...member, teams: member.teams.map((team) => ({ ...team, role })) });
    const withPlatformRole = (role: "auditor" | "platform_admin") => ({
      ...withRole("viewer"),
      user: member.user && { ...member.user, platform_role: role },
    });
    const hidden = (of: typeof member) => ["Webhooks", "Audit", "Simulator", "Operations"].filter((name) => !names(groupsFor(of)).includes(name));
    expect(hidden(withRole("viewer"))).toEqual(["Webhooks", "Audit", "Simulator", "Operations"]);
    expect(hidden(withRole("admin"))).toEqual(["Simulator", "Operations"]);
    expect(hidden(withPlatformRole("auditor"))).toEqual(["Webhooks", "Operations"]);
    expect(hidden(withPlatformRole("platform_admin"))).toEqual(["Webhooks"]);
  });

  it("belong to the group of their address and of those below it", () => {
    const groups = groupsFor(session());
    expect(groupOf(groups, "/jobs/job_1")?.name).toBe("Train");
    expect(groupOf(groups, "/budgets/bud_1")?.name).toBe("Team");
    expect(groupOf(groups, "/prices")?.name).toBe("Administration");
    expect(groupOf(groups, "/account")).toBeUndefined();
  });
});
