import { Button, Center, Group, Loader, Stack, Text } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { useEffect } from "react";
import { Link, useRouteError } from "react-router";

import { Page } from "@/components/page";
import { ProblemNotice } from "@/components/problem-notice";
import { ChunkError, mayReload } from "@/lib/chunk";

export function LoadingPage() {
  return (
    <Center mih="60dvh">
      <Loader size="sm" aria-label="Loading" />
    </Center>
  );
}

/** What a page's own code could not handle; the rest of the dashboard stays usable. */
export function ErrorPage() {
  const error = useRouteError();
  useReloadFor(error);
  return (
    <Page title="Something went wrong on this page">
      <Stack p="md" maw={720}>
        <ProblemNotice error={error} />
        <Group>
          <Button onClick={() => window.location.reload()}>Reload</Button>
          <Button variant="default" component="a" href="/jobs">
            Back to the jobs
          </Button>
        </Group>
      </Stack>
    </Page>
  );
}

/** Reload the page, and so the missing code, when the server answers again. */
function useReloadFor(error: unknown) {
  const { isSuccess } = useQuery({
    queryKey: ["server-answers"],
    queryFn: async () => (await fetch("/", { method: "HEAD", cache: "no-store" })).ok || Promise.reject(new Error("away")),
    enabled: error instanceof ChunkError,
    retry: true,
    retryDelay: 1_000,
    networkMode: "always",
    gcTime: 0,
  });
  useEffect(() => {
    if (isSuccess && mayReload(window.sessionStorage, Date.now())) window.location.reload();
  }, [isSuccess]);
}

export function NotFoundPage() {
  return (
    <Page title="Page not found">
      <Text>The address may be mistyped, or belong to another version of the dashboard.</Text>
      <Group>
        <Button component={Link} to="/jobs" variant="default">
          Back to the jobs
        </Button>
      </Group>
    </Page>
  );
}
