import { Button, Divider, PasswordInput, Stack, Text, TextInput, Title } from "@mantine/core";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import type { SubmitEvent } from "react";
import { useEffect, useState } from "react";
import { Navigate, useSearchParams } from "react-router";

import { Problem } from "@/api/problem";
import { sessionKey, sessionQuery, signIn } from "@/api/session";
import { FurnaceMark } from "@/components/icons";
import { Notice } from "@/components/notice";
import { ProblemNotice } from "@/components/problem-notice";
import { SecondStep } from "@/features/session/components/second-step";
import { fieldsOf } from "@/lib/form";

import classes from "./sign-in-page.module.css";

/** Only a path of this dashboard: an address from elsewhere must not become a way to lead people off. */
function safeNext(next: string | null): string {
  return next !== null && /^\/(?![/\\])/.test(next) ? next : "/jobs";
}

/** What single sign-on comes back with when it did not let somebody in. */
const PROBLEMS: Partial<Record<string, string>> = {
  cancelled: "You cancelled the sign-in at your organisation.",
  inactive: "This account is disabled. Ask a platform administrator.",
  sign_on_failed: "Your organisation's sign-in did not work. Try again; its log and the server's say why.",
};

/** The admin's pages are the server's own: the dashboard's router does not know them. */
function isOfServer(path: string): boolean {
  return /^\/admin(\/|$)/.test(path);
}

function Leave({ to }: { to: string }) {
  useEffect(() => window.location.replace(to), [to]);
  return null;
}

function needsSecondStep(error: unknown): boolean {
  return error instanceof Problem && error.code === "second_factor_required";
}

export function SignInPage() {
  const [search] = useSearchParams();
  const client = useQueryClient();
  // Also sets the CSRF cookie, without which Django refuses the sign-in itself.
  const session = useQuery(sessionQuery());
  const enter = useMutation({
    mutationFn: signIn,
    onSuccess: (data) => client.setQueryData(sessionKey, data),
    onError: async (error) => {
      if (needsSecondStep(error)) await client.invalidateQueries({ queryKey: sessionKey });
    },
  });
  const [expired, setExpired] = useState<Problem | null>(null);
  const notice = enter.error ? undefined : PROBLEMS[search.get("problem") ?? ""];
  useEffect(() => {
    document.title = "Sign in · Athanor";
  }, []);

  const submit = (event: SubmitEvent<HTMLFormElement>) => {
    setExpired(null);
    const field = fieldsOf(event);
    enter.mutate({ username: field("username"), password: field("password") });
  };

  const next = safeNext(search.get("next"));
  if (session.data?.authenticated) return isOfServer(next) ? <Leave to={next} /> : <Navigate to={next} replace />;
  const pending = session.data?.second_factor;
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
        {pending ? (
          <SecondStep kinds={pending.kinds} onExpired={setExpired} />
        ) : (
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
              {notice ? <Notice tone="bad" title={notice} urgent /> : null}
              {expired ? <ProblemNotice error={expired} /> : null}
              {enter.error && !needsSecondStep(enter.error) ? <ProblemNotice error={enter.error} /> : null}
              {session.error ? <ProblemNotice error={session.error} /> : null}
              <Button type="submit" loading={enter.isPending} disabled={session.isPending} fullWidth>
                Sign in
              </Button>
            </Stack>
          </form>
        )}
        {session.data?.sign_on && !pending ? (
          <form method="post" action={session.data.sign_on.url}>
            <input type="hidden" name="csrfmiddlewaretoken" value={session.data.csrf_token} />
            <input type="hidden" name="next" value={next} />
            <Divider label="or" my="md" />
            <Button type="submit" variant="default" fullWidth>
              Sign in with {session.data.sign_on.name}
            </Button>
          </form>
        ) : null}
      </div>
    </main>
  );
}
