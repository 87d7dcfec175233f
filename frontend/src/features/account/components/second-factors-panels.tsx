import { Button, Group, Modal, Text } from "@mantine/core";
import { useDisclosure } from "@mantine/hooks";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";

import { Panel } from "@/components/panel";
import { Pill } from "@/components/pill";
import { ProblemNotice } from "@/components/problem-notice";
import {
  newRecoveryCodes,
  refreshSecondFactors,
  removeApp,
  secondFactorsQuery,
} from "@/features/account/api/account";
import { AppDialog } from "@/features/account/components/app-dialog";
import { PasskeysPanel } from "@/features/account/components/passkeys-panel";
import { PasswordForm } from "@/features/account/components/password-form";
import { NewCodes } from "@/features/account/components/recovery-codes";
import { moment } from "@/lib/format";

/** What signing in asks for after the password. */
export function SecondFactorsPanels() {
  const factors = useQuery(secondFactorsQuery());
  if (factors.error) return <ProblemNotice error={factors.error} onRetry={() => void factors.refetch()} />;
  if (factors.data === undefined) return null;
  const { has_password, authenticator_app_since, passkeys, passkeys_available, recovery_codes_left } = factors.data;
  if (!has_password) {
    return (
      <Panel title="Second factor">
        <Text size="sm">You sign in through your organisation. Set up a second factor there.</Text>
      </Panel>
    );
  }
  return (
    <>
      <AppPanel since={authenticator_app_since} />
      <PasskeysPanel passkeys={passkeys} available={passkeys_available} />
      {recovery_codes_left === null ? null : <CodesPanel left={recovery_codes_left} />}
    </>
  );
}

function AppPanel({ since }: { since: string | null }) {
  const client = useQueryClient();
  const [settingUp, setup] = useDisclosure(false);
  const [removing, removal] = useDisclosure(false);
  const remove = useMutation({
    mutationFn: removeApp,
    onSuccess: async () => {
      await refreshSecondFactors(client);
      removal.close();
    },
  });
  return (
    <Panel title="Authenticator app" tools={since === null ? null : <Pill tone="good">On</Pill>}>
      <Group justify="space-between">
        <Text size="sm" c="dimmed">
          {since === null
            ? "Signing in asks for a code from an app on your phone, after your password."
            : `Signing in asks for a code from your app. Set up ${moment(since)}.`}
        </Text>
        {since === null ? (
          <Button onClick={setup.open}>Set up</Button>
        ) : (
          <Button variant="default" onClick={removal.open}>
            Remove app
          </Button>
        )}
      </Group>
      <AppDialog opened={settingUp} onClose={setup.close} />
      <Modal opened={removing} onClose={removal.close} title="Remove authenticator app" centered>
        <PasswordForm
          action="Remove"
          danger
          busy={remove.isPending}
          error={remove.error}
          onSubmit={(password) => remove.mutate(password)}
          onCancel={removal.close}
        >
          <Text size="sm">
            Its codes no longer sign you in, and your other sessions end. Without a passkey, your password alone signs you in.
          </Text>
        </PasswordForm>
      </Modal>
    </Panel>
  );
}

function CodesPanel({ left }: { left: number }) {
  const client = useQueryClient();
  const [opened, dialog] = useDisclosure(false);
  const generate = useMutation({
    mutationFn: newRecoveryCodes,
    onSuccess: () => refreshSecondFactors(client),
  });
  const close = () => {
    generate.reset();
    dialog.close();
  };
  return (
    <Panel title="Recovery codes">
      <Group justify="space-between">
        <Text size="sm" c="dimmed">
          {left === 1 ? "1 code" : `${left} codes`} left. Each signs you in once without your app or passkey.
        </Text>
        <Button variant="default" onClick={dialog.open}>
          Generate new codes
        </Button>
      </Group>
      <Modal opened={opened} onClose={close} title="New recovery codes" centered closeOnClickOutside={false}>
        {generate.data ? (
          <NewCodes codes={generate.data.recovery_codes} onDone={close} />
        ) : (
          <PasswordForm
            action="Generate"
            busy={generate.isPending}
            error={generate.error}
            onSubmit={(password) => generate.mutate(password)}
            onCancel={close}
          >
            <Text size="sm">Your old codes stop working.</Text>
          </PasswordForm>
        )}
      </Modal>
    </Panel>
  );
}
