import { Button, Divider, Stack, Text, TextInput } from "@mantine/core";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import type { SubmitEvent } from "react";
import { useEffect, useRef } from "react";

import { Problem } from "@/api/problem";
import { sendCode, sendPasskey, sessionKey, signOut } from "@/api/session";
import type { SecondFactorKind, Session } from "@/api/types";
import { ProblemNotice } from "@/components/problem-notice";
import { fieldsOf } from "@/lib/form";

interface SecondStepProps {
  kinds: SecondFactorKind[];
  /** It took too long: the first step is needed again. */
  onExpired: (problem: Problem) => void;
}

/** The second step of signing in, by what the account has. */
export function SecondStep({ kinds, onExpired }: SecondStepProps) {
  const client = useQueryClient();
  const field = useRef<HTMLInputElement>(null);
  // The form of the first step, which had the focus, is gone.
  useEffect(() => field.current?.focus(), []);
  const onSuccess = (session: Session) => client.setQueryData(sessionKey, session);
  const onError = async (problem: Error) => {
    if (!(problem instanceof Problem) || problem.code !== "sign_in_expired") return;
    onExpired(problem);
    await client.invalidateQueries({ queryKey: sessionKey });
  };
  const code = useMutation({ mutationFn: sendCode, onSuccess, onError });
  const passkey = useMutation({ mutationFn: sendPasskey, onSuccess, onError });
  const leave = useMutation({
    mutationFn: signOut,
    onSettled: () => client.invalidateQueries({ queryKey: sessionKey }),
  });
  const submit = (event: SubmitEvent<HTMLFormElement>) => {
    passkey.reset();
    code.mutate(fieldsOf(event)("code"));
  };
  const hasPasskey = kinds.includes("passkey");
  const hasApp = kinds.includes("authenticator_app");
  const error = code.error ?? passkey.error;
  return (
    <Stack gap="md">
      <Text size="sm" ta="center">
        Confirm that it is you.
      </Text>
      {hasPasskey ? (
        <>
          <Button
            variant={hasApp ? "default" : "filled"}
            loading={passkey.isPending}
            onClick={() => {
              code.reset();
              passkey.mutate();
            }}
            fullWidth
          >
            Use a passkey
          </Button>
          <Divider label="or" />
        </>
      ) : null}
      <form onSubmit={submit}>
        <Stack gap="md">
          <TextInput
            name="code"
            label="Code"
            description={hasApp ? "From your authenticator app, or a recovery code" : "One of your recovery codes"}
            autoComplete="one-time-code"
            ref={field}
            required
            withAsterisk={false}
          />
          {error ? <ProblemNotice error={error} /> : null}
          <Button type="submit" loading={code.isPending} fullWidth>
            Continue
          </Button>
        </Stack>
      </form>
      <Button variant="subtle" loading={leave.isPending} onClick={() => leave.mutate()} fullWidth>
        Use another account
      </Button>
    </Stack>
  );
}
