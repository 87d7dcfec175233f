import { Button, PasswordInput, Stack, Text, TextInput, Title } from "@mantine/core";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import type { SubmitEvent } from "react";
import { useEffect, useState } from "react";
import { Link, useNavigate } from "react-router";

import { acceptInvitation, sessionQuery, signIn } from "@/api/session";
import { FurnaceMark } from "@/components/icons";
import { Notice } from "@/components/notice";
import { ProblemNotice } from "@/components/problem-notice";
import { fieldsOf } from "@/lib/form";

import classes from "./sign-in-page.module.css";

/** Where an invitation's link leads. Its token is behind the #, so no server's log ever holds it. */
export function InvitationPage() {
  const [token] = useState(() => window.location.hash.slice(1));
  const client = useQueryClient();
  const navigate = useNavigate();
  const session = useQuery(sessionQuery());
  const user = session.data?.user ?? null;
  useEffect(() => {
    document.title = "Invitation · Athanor";
  }, []);
  const accept = useMutation({
    mutationFn: async (account: { username: string; password: string } | null) => {
      await acceptInvitation(token, account);
      if (account !== null) await signIn(account);
    },
    onSuccess: async () => {
      await client.invalidateQueries();
      void navigate("/team", { replace: true });
    },
  });
  const submit = (event: SubmitEvent<HTMLFormElement>) => {
    const field = fieldsOf(event);
    accept.mutate(user === null ? { username: field("username"), password: field("password") } : null);
  };
  return (
    <main className={classes.page}>
      <div className={classes.card}>
        <Stack gap={6} align="center" mb="lg">
          <FurnaceMark size={44} />
          <Title order={1} className={classes.title}>
            You are invited
          </Title>
          <Text size="sm" c="dimmed">
            {user === null ? "Choose a name and a password." : `You are signed in as ${user.username}.`}
          </Text>
        </Stack>
        {token === "" ? (
          <Notice tone="bad" title="This link is incomplete">
            Open it again exactly as it was sent.
          </Notice>
        ) : (
          <form onSubmit={submit}>
            <Stack gap="md">
              {user === null ? (
                <>
                  <TextInput name="username" label="Username" autoComplete="username" required withAsterisk={false} />
                  <PasswordInput
                    name="password"
                    label="Password"
                    autoComplete="new-password"
                    required
                    withAsterisk={false}
                  />
                </>
              ) : null}
              {accept.error ? <ProblemNotice error={accept.error} /> : null}
              <Button type="submit" loading={accept.isPending} disabled={session.isPending} fullWidth>
                Join the team
              </Button>
              {user === null ? (
                <Text size="sm" ta="center">
                  Already have an account? <Link to={`/sign-in?next=${encodeURIComponent(`/invitation#${token}`)}`}>Sign in</Link> first.
                </Text>
              ) : null}
            </Stack>
          </form>
        )}
      </div>
    </main>
  );
}
