import { Button, Group, Modal, Stack, Text, TextInput } from "@mantine/core";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";

import { teamKeys } from "@/api/teams";
import type { SigningKey } from "@/api/types";
import { Confirm } from "@/components/confirm";
import { CopyButton } from "@/components/copy-button";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { EmptyState } from "@/components/empty-state";
import { Moment } from "@/components/moment";
import { Panel } from "@/components/panel";
import { Pill } from "@/components/pill";
import { ProblemNotice } from "@/components/problem-notice";
import { revokeSigningKey, rotateSigningKey, signingKeysQuery } from "@/features/team/api/team";
import { fieldsOf } from "@/lib/form";
import type { Tone } from "@/lib/status";

const STATES: Record<SigningKey["state"], [Tone, string]> = {
  active: ["good", "Active"],
  retired: ["muted", "Retired"],
  revoked: ["bad", "Revoked"],
};

const COLUMNS: Column<SigningKey>[] = [
  {
    name: "Fingerprint",
    cell: ({ fingerprint }) => (
      <>
        <span className="mono">{fingerprint.slice(0, 16)}…</span>{" "}
        <CopyButton value={fingerprint} label={`Copy the fingerprint ${fingerprint.slice(0, 16)}`} />
      </>
    ),
  },
  {
    name: "State",
    cell: ({ state, revocation_reason }) => (
      <>
        <Pill tone={STATES[state][0]}>{STATES[state][1]}</Pill>{" "}
        <Text size="xs" c="dimmed" component="span">
          {revocation_reason}
        </Text>
      </>
    ),
  },
  {
    name: "Public key",
    cell: ({ fingerprint, public_key }) => (
      <CopyButton value={public_key} label={`Copy the public key ${fingerprint.slice(0, 16)}, as PEM`} />
    ),
  },
  { name: "Created", end: true, quiet: true, cell: (key) => <Moment time={key.created_at} /> },
];

function RevokeDialog({ teamId, chosen, onClose }: { teamId: string; chosen: SigningKey; onClose: () => void }) {
  const client = useQueryClient();
  const revoke = useMutation({
    mutationFn: (reason: string) => revokeSigningKey(chosen.id, reason),
    onSuccess: onClose,
    onSettled: () => client.invalidateQueries({ queryKey: teamKeys.of(teamId, "signing-keys") }),
  });
  return (
    <Modal opened onClose={onClose} title={`Revoke the key ${chosen.fingerprint.slice(0, 16)}…`} centered>
      <form onSubmit={(event) => revoke.mutate(fieldsOf(event)("reason"))}>
        <Stack>
          <Text size="sm">
            All signatures by it are refused from now on, also those that it made before. This cannot be undone.
          </Text>
          <TextInput
            name="reason"
            label="Reason"
            description="Shown to those who verify a signature by it, and in the audit trail"
            maxLength={500}
            required
            withAsterisk={false}
            data-autofocus
          />
          {revoke.error ? <ProblemNotice error={revoke.error} /> : null}
          <Group justify="flex-end">
            <Button variant="default" onClick={onClose}>
              Cancel
            </Button>
            <Button type="submit" color="red" loading={revoke.isPending}>
              Revoke
            </Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  );
}

/** The keys that sign the team's exported models. Its administrators rotate and revoke them. */
export function SigningKeysPanel({ teamId, manages }: { teamId: string; manages: boolean }) {
  const client = useQueryClient();
  const keys = useQuery(signingKeysQuery(teamId));
  const [isRotating, setRotating] = useState(false);
  const [chosen, setChosen] = useState<SigningKey | null>(null);
  const rotate = useMutation({
    mutationFn: () => rotateSigningKey(teamId),
    onSuccess: () => setRotating(false),
    onSettled: () => client.invalidateQueries({ queryKey: teamKeys.of(teamId, "signing-keys") }),
  });
  const revoke: Column<SigningKey> = {
    name: "(Revoke)",
    end: true,
    cell: (key) =>
      key.state === "revoked" ? null : (
        <Button
          size="compact-sm"
          variant="subtle"
          color="red"
          onClick={() => setChosen(key)}
          aria-label={`Revoke the key ${key.fingerprint.slice(0, 16)}`}
        >
          Revoke
        </Button>
      ),
  };
  const rows = keys.data?.items ?? [];
  const tools = manages ? (
    <Button size="compact-sm" variant="default" onClick={() => setRotating(true)}>
      {rows.length > 0 ? "Rotate" : "New signing key"}
    </Button>
  ) : null;
  return (
    <Panel title="Signing keys" tools={tools} flush>
      {keys.error ? <ProblemNotice error={keys.error} onRetry={() => void keys.refetch()} /> : null}
      {rows.length > 0 ? (
        <DataTable
          label="Signing keys"
          rows={rows}
          columns={manages ? [...COLUMNS, revoke] : COLUMNS}
          rowKey={(key) => key.id}
        />
      ) : keys.isSuccess ? (
        <EmptyState title="No signing keys">
          The first download of an exported model creates one, and is signed by it.
        </EmptyState>
      ) : null}
      {chosen === null ? null : <RevokeDialog teamId={teamId} chosen={chosen} onClose={() => setChosen(null)} />}
      <Confirm
        opened={isRotating}
        title={rows.length > 0 ? "Rotate the signing key?" : "Create a signing key?"}
        yes={rows.length > 0 ? "Rotate" : "Create"}
        no="Cancel"
        busy={rotate.isPending}
        error={rotate.error}
        onYes={() => rotate.mutate()}
        onNo={() => setRotating(false)}
      >
        <Text size="sm">
          A new key signs from now on. Signatures by the keys before it stay valid; give the new public key to those who
          verify.
        </Text>
      </Confirm>
    </Panel>
  );
}
