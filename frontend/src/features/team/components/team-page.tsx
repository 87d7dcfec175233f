import { NativeSelect } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { useSearchParams } from "react-router";

import { sessionQuery } from "@/api/session";
import { DeletedPanel } from "@/components/deleted-panel";
import { EmptyState } from "@/components/empty-state";
import { Page } from "@/components/page";
import { Panel } from "@/components/panel";
import { AllTeamsPanel } from "@/features/team/components/all-teams-panel";
import { DataPolicyPanel } from "@/features/team/components/data-policy-panel";
import { InvitationsPanel } from "@/features/team/components/invitations-panel";
import { MembersPanel } from "@/features/team/components/members-panel";
import { OffersPanel } from "@/features/team/components/offers-panel";
import { ProjectsPanel } from "@/features/team/components/projects-panel";
import { SecretsPanel } from "@/features/team/components/secrets-panel";
import { ServiceAccountsPanel } from "@/features/team/components/service-accounts-panel";
import { SigningKeysPanel } from "@/features/team/components/signing-keys-panel";

/** Who belongs to a team and what it owns; its administrators change it here. */
export function TeamPage() {
  const session = useQuery(sessionQuery());
  const [search, setSearch] = useSearchParams();
  const teams = session.data?.teams ?? [];
  const operates = session.data?.user?.platform_role === "platform_admin";
  const team = teams.find((each) => each.name === search.get("team")) ?? teams[0];
  if (team === undefined) {
    return (
      <Page title="Team">
        <OffersPanel />
        {operates ? <AllTeamsPanel /> : null}
        <Panel>
          <EmptyState title="You are not in a team yet">
            Ask a team administrator for an invitation, by your username or by link.
          </EmptyState>
        </Panel>
        <DeletedPanel kinds={["project", "team"]} />
      </Page>
    );
  }
  const manages = team.role === "admin";
  const choose =
    teams.length > 1 ? (
      <NativeSelect
        aria-label="Team"
        value={team.name}
        data={teams.map((each) => each.name)}
        onChange={(event) => setSearch({ team: event.currentTarget.value })}
      />
    ) : null;
  return (
    <Page title={`Team ${team.name}`} lead={`Your role: ${team.role}.`} actions={choose}>
      <OffersPanel />
      <MembersPanel teamId={team.id} manages={manages} ownId={session.data?.user?.id ?? ""} />
      {manages ? <InvitationsPanel teamId={team.id} /> : null}
      {manages ? <ServiceAccountsPanel teamId={team.id} /> : null}
      <SecretsPanel teamId={team.id} manages={manages} />
      <SigningKeysPanel teamId={team.id} manages={manages} />
      <DataPolicyPanel teamId={team.id} manages={manages} />
      <ProjectsPanel teamId={team.id} teamName={team.name} writes={team.role !== "viewer"} manages={manages} />
      {operates ? <AllTeamsPanel /> : null}
      <DeletedPanel kinds={["project", "team"]} />
    </Page>
  );
}
