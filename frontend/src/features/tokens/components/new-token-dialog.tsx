import { Button, Checkbox, Group, Modal, MultiSelect, NativeSelect, Stack, Text, TextInput } from "@mantine/core";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import type { SubmitEvent } from "react";
import { useState } from "react";

import { errorAt } from "@/api/problem";
import type { Team, TokenRequest } from "@/api/types";
import { ProblemNotice } from "@/components/problem-notice";
import { ShownOnce } from "@/components/shown-once";
import { createToken, tokensKey } from "@/features/tokens/api/tokens";
import { fieldsOf } from "@/lib/form";

const LIFETIMES = [
  { value: "30", label: "30 days" },
  { value: "90", label: "90 days" },
  { value: "365", label: "One year" },
  { value: "", label: "Longest allowed" },
];

type Scope = NonNullable<TokenRequest["scopes"]>[number];

const TEAM_SCOPES: { value: Scope; label: string }[] = [
  { value: "read", label: "Read" },
  { value: "submit", label: "Submit and stop jobs, upload data" },
  { value: "artifacts", label: "Download models and data" },
  { value: "admin", label: "Manage the team" },
];
const ALL_TEAM_SCOPES = TEAM_SCOPES.map(({ value }) => value);
const PLATFORM_PARTS: { value: Scope; label: string }[] = [
  { value: "platform:clusters", label: "Clusters and operations" },
  { value: "platform:quotas", label: "Quotas" },
  { value: "platform:budgets", label: "Budgets and prices" },
  { value: "platform:people", label: "Teams and people" },
  { value: "platform:audit", label: "Audit trail and usage" },
];

interface NewTokenDialogProps {
  opened: boolean;
  teams: Team[];
  /** Whether the user has a role on the platform, parts of which a token can have. */
  hasPlatformRole: boolean;
  onClose: () => void;
}

export function NewTokenDialog({ opened, teams, hasPlatformRole, onClose }: NewTokenDialogProps) {
  const client = useQueryClient();
  const [scopes, setScopes] = useState<Scope[]>(ALL_TEAM_SCOPES);
  const [parts, setParts] = useState<Scope[]>([]);
  const create = useMutation({
    mutationFn: createToken,
    onSuccess: () => client.invalidateQueries({ queryKey: tokensKey }),
  });
  const submit = (event: SubmitEvent<HTMLFormElement>) => {
    const field = fieldsOf(event);
    const days = field("days");
    create.mutate({
      name: field("name"),
      team: field("team"),
      scopes: [...scopes, ...parts],
      ...(days === "" ? {} : { expires_in_days: Number(days) }),
    });
  };
  // The secret leaves the memory of the page with the dialog.
  const close = () => {
    create.reset();
    setScopes(ALL_TEAM_SCOPES);
    setParts([]);
    onClose();
  };
  const made = create.data;
  return (
    <Modal
      opened={opened}
      onClose={close}
      title={made ? "Copy the token now" : "New token"}
      centered
      closeOnClickOutside={!made}
    >
      {made ? (
        <ShownOnce secret={made.token} onDone={close}>
          It is shown once: the server stores only a hash of it.
        </ShownOnce>
      ) : (
        <form onSubmit={submit}>
          <Stack>
            <TextInput
              name="name"
              label="Name"
              description="What will use it, such as ci or laptop"
              error={errorAt(create.error, "/name")}
              required
              withAsterisk={false}
              maxLength={100}
              data-autofocus
            />
            <NativeSelect
              name="team"
              label="Team"
              error={errorAt(create.error, "/team")}
              data={teams.map((team) => team.name)}
              required
              withAsterisk={false}
            />
            <NativeSelect name="days" label="Lifetime" error={errorAt(create.error, "/expires_in_days")} data={LIFETIMES} />
            <Checkbox.Group
              label="Scopes"
              description="What the token may do, within your role in the team"
              value={scopes}
              onChange={setScopes}
              error={errorAt(create.error, "/scopes")}
            >
              <Stack gap={6} mt={6}>
                {TEAM_SCOPES.map(({ value, label }) => (
                  <Checkbox key={value} value={value} label={label} />
                ))}
              </Stack>
            </Checkbox.Group>
            {hasPlatformRole ? (
              <MultiSelect
                label="Platform role"
                description="Platform permissions of the token"
                placeholder={parts.length === 0 ? "None" : ""}
                data={PLATFORM_PARTS}
                value={parts}
                onChange={setParts}
                error={errorAt(create.error, "/scopes")}
              />
            ) : null}
            {create.error ? <ProblemNotice error={create.error} /> : null}
            {teams.length === 0 ? (
              <Text size="sm" c="dimmed">
                A token belongs to a team, and you are not in one yet.
              </Text>
            ) : null}
            <Group justify="flex-end">
              <Button variant="default" onClick={close}>
                Back
              </Button>
              <Button type="submit" loading={create.isPending} disabled={teams.length === 0 || scopes.length + parts.length === 0}>
                Create
              </Button>
            </Group>
          </Stack>
        </form>
      )}
    </Modal>
  );
}
