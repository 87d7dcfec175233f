import { Button, PasswordInput, Stack, Text, TextInput, Title } from "@mantine/core";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import type { SubmitEvent } from "react";
import { useEffect } from "react";
import { Navigate, useSearchParams } from "react-router";

import { sessionKey, sessionQuery, signIn } from "@/api/session";
import { FurnaceMark } from "@/components/icons";
import { ProblemNotice } from "@/components/problem-notice";

import classes from "./sign-in-page.module.css";

/** Only a path of this dashboard: an address from elsewhere must not become a way to lead people off. */
function safeNext(next: string | null): string {
  return next !== null && /^\/(?![/\\])/.test(next) ? next : "/jobs";
}

export function SignInPage() {
  const [search] = useSearchParams();
  const client = useQueryClient();
  // Also sets the CSRF cookie, without which Django refuses the sign-in itself.
  const session = useQuery(sessionQuery());
  const enter = useMutation({
    mutationFn: signIn,
    onSuccess: (data) => client.setQueryData(sessionKey, data),
  });
  useEffect(() => {
    document.title = "Sign in · Athanor";
  }, []);

  const submit = (event: SubmitEvent<HTMLFormElement>) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget);
    const field = (name: string) => {
      const value = form.get(name);
      return typeof value === "string" ? value : "";
    };
    enter.mutate({ username: field("username"), password: field("password") });
  };

  if (session.data?.authenticated) return <Navigate to={safeNext(search.get("next"))} replace />;
  return (
    <main className={classes.page}>
      <div className={classes.card}>
        <Stack gap={6} align="center" mb="lg">
          <FurnaceMark size={44} />
          <Title order={1} className={classes.title}>
            athanor
          </Title>
          <Text size="sm" c="dimmed">
            Training as a service
          </Text>
        </Stack>
        <form onSubmit={submit}>
          <Stack gap="md">
            <TextInput name="username" label="Username" autoComplete="username" required withAsterisk={false} />
            <PasswordInput
              name="password"
              label="Password"
              autoComplete="current-password"
              required
              withAsterisk={false}
            />
            {enter.error ? <ProblemNotice error={enter.error} /> : null}
            {session.error ? <ProblemNotice error={session.error} /> : null}
            <Button type="submit" loading={enter.isPending} disabled={session.isPending} fullWidth>
              Sign in
            </Button>
          </Stack>
        </form>
      </div>
    </main>
  );
}
