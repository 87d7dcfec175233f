import type { Session } from "@/api/types";

export interface Section {
  to: string;
  name: string;
}

export interface SectionGroup {
  name: string;
  sections: Section[];
}

/** The pages that a user may open, grouped by what people do with them. The server checks the rights. */
export function groupsFor(session: Session): SectionGroup[] {
  const role = session.user?.platform_role ?? "none";
  const managesATeam = session.teams.some((team) => team.role === "admin");
  const oversees = role !== "none";
  const groups: { name: string; sections: (Section & { shown?: boolean })[] }[] = [
    {
      name: "Train",
      sections: [
        { to: "/jobs", name: "Jobs" },
        { to: "/queue", name: "Queue" },
        { to: "/compare", name: "Compare" },
        { to: "/alerts", name: "Alerts" },
      ],
    },
    {
      name: "Data and models",
      sections: [
        { to: "/datasets", name: "Datasets" },
        { to: "/models", name: "Models" },
      ],
    },
    {
      name: "Team",
      sections: [
        { to: "/team", name: "Members" },
        { to: "/quotas", name: "Quotas" },
        { to: "/budgets", name: "Budgets" },
        { to: "/costs", name: "Costs" },
        { to: "/tokens", name: "Tokens" },
        { to: "/webhooks", name: "Webhooks", shown: managesATeam },
        { to: "/audit", name: "Audit", shown: managesATeam || oversees },
      ],
    },
    {
      name: "Administration",
      sections: [
        { to: "/clusters", name: "Clusters" },
        { to: "/prices", name: "Prices" },
        { to: "/simulator", name: "Simulator", shown: oversees },
        { to: "/operations", name: "Operations", shown: role === "platform_admin" },
      ],
    },
  ];
  return groups.map(({ name, sections }) => ({ name, sections: sections.filter((each) => each.shown ?? true) }));
}

/** The group of the page at this address; none for pages of the user's own account. */
export function groupOf(groups: SectionGroup[], pathname: string): SectionGroup | undefined {
  return groups.find((group) => group.sections.some(({ to }) => pathname === to || pathname.startsWith(`${to}/`)));
}
