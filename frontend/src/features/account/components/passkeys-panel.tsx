import { Button, Group, Modal, Stack, Text, TextInput } from "@mantine/core";
import { useDisclosure } from "@mantine/hooks";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import type { SubmitEvent } from "react";
import { useState } from "react";

import type { Passkey } from "@/api/types";
import type { Column } from "@/components/data-table";
import { DataTable } from "@/components/data-table";
import { PlusIcon } from "@/components/icons";
import { Moment } from "@/components/moment";
import { Panel } from "@/components/panel";
import { ProblemNotice } from "@/components/problem-notice";
import { addPasskey, refreshSecondFactors, removePasskey, renamePasskey } from "@/features/account/api/account";
import { PasswordForm } from "@/features/account/components/password-form";
import { NewCodes } from "@/features/account/components/recovery-codes";
import { fieldsOf } from "@/lib/form";

export function PasskeysPanel({ passkeys, available }: { passkeys: Passkey[]; available: boolean }) {
  const [adding, add] = useDisclosure(false);
  const [renamed, setRenamed] = useState<Passkey | null>(null);
  const [removed, setRemoved] = useState<Passkey | null>(null);
  const columns: Column<Passkey>[] = [
    { name: "Name", cell: (passkey) => passkey.name },
    { name: "Added", quiet: true, cell: (passkey) => <Moment time={passkey.created_at} /> },
    { name: "Last used", quiet: true, cell: (passkey) => <Moment time={passkey.last_used_at} /> },
    {
      name: "(Change)",
      end: true,
      cell: (passkey) => (
        <Group gap={4} justify="flex-end" wrap="nowrap">
          <Button size="compact-sm" variant="subtle" onClick={() => setRenamed(passkey)}>
            Rename<span className="visually-hidden"> {passkey.name}</span>
          </Button>
          <Button size="compact-sm" variant="subtle" color="red" onClick={() => setRemoved(passkey)}>
            Remove<span className="visually-hidden"> {passkey.name}</span>
          </Button>
        </Group>
      ),
    },
  ];
  return (
    <Panel
      title="Passkeys"
      flush={passkeys.length > 0}
      tools={
        available ? (
          <Button size="compact-sm" variant="default" leftSection={<PlusIcon size={15} />} onClick={add.open}>
            Add passkey
          </Button>
        ) : null
      }
    >
      {passkeys.length > 0 ? (
        <DataTable label="Passkeys" rows={passkeys} columns={columns} rowKey={(passkey) => passkey.id} />
      ) : (
        <Text size="sm" c="dimmed">
          {available
            ? "A passkey on a security key, a phone or this computer can be the second step of signing in."
            : "Passkeys need an address with a host name over https. Use an authenticator app here."}
        </Text>
      )}
      <AddDialog opened={adding} onClose={add.close} />
      <RenameDialog passkey={renamed} onClose={() => setRenamed(null)} />
      <RemoveDialog passkey={removed} onClose={() => setRemoved(null)} />
    </Panel>
  );
}

function useChange<V, T>(change: (given: V) => Promise<T>, done: (result: T) => void) {
  const client = useQueryClient();
  return useMutation({
    mutationFn: change,
    onSuccess: async (result) => {
      await refreshSecondFactors(client);
      done(result);
    },
  });
}

function AddDialog({ opened, onClose }: { opened: boolean; onClose: () => void }) {
  const add = useChange(
    ({ name, password }: { name: string; password: string }) => addPasskey(name, password),
    ({ recovery_codes }) => {
      if (recovery_codes.length === 0) onClose();
    },
  );
  const close = () => {
    add.reset();
    onClose();
  };
  const codes = add.data?.recovery_codes ?? [];
  return (
    <Modal opened={opened} onClose={close} title="Add passkey" centered closeOnClickOutside={false}>
      {codes.length > 0 ? (
        <NewCodes codes={codes} onDone={close} />
      ) : (
        <PasswordForm
          action="Continue"
          busy={add.isPending}
          error={add.error}
          onSubmit={(password, field) => add.mutate({ name: field("name"), password })}
          onCancel={close}
        >
          <TextInput
            name="name"
            label="Name"
            description="Where the passkey is, such as phone or security key"
            required
            withAsterisk={false}
            maxLength={100}
            data-autofocus
          />
        </PasswordForm>
      )}
    </Modal>
  );
}

function RenameDialog({ passkey, onClose }: { passkey: Passkey | null; onClose: () => void }) {
  const rename = useChange((name: string) => renamePasskey(passkey?.id ?? "", name), onClose);
  const submit = (event: SubmitEvent<HTMLFormElement>) => rename.mutate(fieldsOf(event)("name"));
  return (
    <Modal opened={passkey !== null} onClose={onClose} title="Rename passkey" centered>
      <form onSubmit={submit}>
        <Stack>
          <TextInput
            name="name"
            label="Name"
            defaultValue={passkey?.name ?? ""}
            required
            withAsterisk={false}
            maxLength={100}
            data-autofocus
          />
          {rename.error ? <ProblemNotice error={rename.error} /> : null}
          <Group justify="flex-end">
            <Button variant="default" onClick={onClose}>
              Cancel
            </Button>
            <Button type="submit" loading={rename.isPending}>
              Rename
            </Button>
          </Group>
        </Stack>
      </form>
    </Modal>
  );
}

function RemoveDialog({ passkey, onClose }: { passkey: Passkey | null; onClose: () => void }) {
  const remove = useChange((password: string) => removePasskey(passkey?.id ?? "", password), onClose);
  return (
    <Modal opened={passkey !== null} onClose={onClose} title="Remove passkey" centered>
      <PasswordForm
        action="Remove passkey"
        danger
        busy={remove.isPending}
        error={remove.error}
        onSubmit={(password) => remove.mutate(password)}
        onCancel={onClose}
      >
        <Text size="sm">{passkey?.name} no longer signs you in. Your other sessions end.</Text>
      </PasswordForm>
    </Modal>
  );
}
