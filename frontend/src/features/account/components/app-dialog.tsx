import { Button, Group, Modal, Stack, Text, TextInput } from "@mantine/core";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import type { SubmitEvent } from "react";

import type { AppSetup } from "@/api/types";
import { CopyButton } from "@/components/copy-button";
import { ProblemNotice } from "@/components/problem-notice";
import { beginApp, confirmApp, refreshSecondFactors } from "@/features/account/api/account";
import { PasswordForm } from "@/features/account/components/password-form";
import { NewCodes } from "@/features/account/components/recovery-codes";
import { fieldsOf } from "@/lib/form";

import classes from "./second-factors.module.css";

/** Sets up the authenticator app: the password, the QR code with a first code, then the recovery codes. */
export function AppDialog({ opened, onClose }: { opened: boolean; onClose: () => void }) {
  const client = useQueryClient();
  const begin = useMutation({ mutationFn: beginApp });
  const confirm = useMutation({
    mutationFn: confirmApp,
    onSuccess: async ({ recovery_codes }) => {
      await refreshSecondFactors(client);
      if (recovery_codes.length === 0) close();
    },
  });
  // The secret and the codes leave the memory of the page with the dialog.
  const close = () => {
    begin.reset();
    confirm.reset();
    onClose();
  };
  const codes = confirm.data?.recovery_codes ?? [];
  return (
    <Modal opened={opened} onClose={close} title="Set up authenticator app" centered closeOnClickOutside={false}>
      {codes.length > 0 ? (
        <NewCodes codes={codes} onDone={close} />
      ) : begin.data ? (
        <Confirmation setup={begin.data} busy={confirm.isPending} error={confirm.error} onCode={confirm.mutate} />
      ) : (
        <PasswordForm
          action="Continue"
          busy={begin.isPending}
          error={begin.error}
          onSubmit={(password) => begin.mutate(password)}
          onCancel={close}
        >
          <Text size="sm">You need an app that makes six-digit codes, on your phone or in your password manager.</Text>
        </PasswordForm>
      )}
    </Modal>
  );
}

interface ConfirmationProps {
  setup: AppSetup;
  busy: boolean;
  error: unknown;
  onCode: (code: string) => void;
}

function Confirmation({ setup, busy, error, onCode }: ConfirmationProps) {
  const submit = (event: SubmitEvent<HTMLFormElement>) => onCode(fieldsOf(event)("code"));
  return (
    <form onSubmit={submit}>
      <Stack>
        <Text size="sm">Scan the QR code with the app, or enter the key.</Text>
        <img
          className={classes.qr}
          src={`data:image/svg+xml,${encodeURIComponent(setup.qr_svg)}`}
          alt="QR code for the authenticator app"
        />
        <TextInput
          label="Key"
          value={setup.secret}
          readOnly
          classNames={{ input: "mono" }}
          rightSection={<CopyButton value={setup.secret} label="Copy the key" />}
        />
        <TextInput
          name="code"
          label="Code from the app"
          autoComplete="one-time-code"
          inputMode="numeric"
          required
          withAsterisk={false}
          data-autofocus
        />
        {error ? <ProblemNotice error={error} /> : null}
        <Group justify="flex-end">
          <Button type="submit" loading={busy}>
            Turn on
          </Button>
        </Group>
      </Stack>
    </form>
  );
}
