import { Anchor, Button, PasswordInput, Stack, Text, Title } from "@mantine/core";
import { useMutation } from "@tanstack/react-query";
import type { SubmitEvent } from "react";
import { useEffect, useState } from "react";
import { Link } from "react-router";

import { resetPassword } from "@/api/session";
import { FurnaceMark } from "@/components/icons";
import { Notice } from "@/components/notice";
import { ProblemNotice } from "@/components/problem-notice";
import { fieldsOf } from "@/lib/form";

import classes from "./sign-in-page.module.css";

/** Where the link that an administrator made leads. Its token is behind the #, so no server's log ever holds it. */
export function ResetPasswordPage() {
  const [token] = useState(() => window.location.hash.slice(1));
  useEffect(() => {
    document.title = "New password · Athanor";
  }, []);
  const reset = useMutation({ mutationFn: (password: string) => resetPassword(token, password) });
  const submit = (event: SubmitEvent<HTMLFormElement>) => {
    reset.mutate(fieldsOf(event)("password"));
  };
  return (
    <main className={classes.page}>
      <div className={classes.card}>
        <Stack gap={6} align="center" mb="lg">
          <FurnaceMark size={44} />
          <Title order={1} className={classes.title}>
            Set a new password
          </Title>
        </Stack>
        {token === "" ? (
          <Notice tone="bad" title="The link is incomplete">
            Open it again exactly as it was sent.
          </Notice>
        ) : reset.isSuccess ? (
          <Text>
            The password is set. <Anchor component={Link} to="/sign-in">Sign in</Anchor>.
          </Text>
        ) : (
          <form onSubmit={submit}>
            <Stack gap="md">
              <PasswordInput
                name="password"
                label="New password"
                autoComplete="new-password"
                required
                withAsterisk={false}
              />
              {reset.error ? <ProblemNotice error={reset.error} /> : null}
              <Button type="submit" loading={reset.isPending} fullWidth>
                Set password
              </Button>
            </Stack>
          </form>
        )}
      </div>
    </main>
  );
}
