import { Button, Center, Group, Loader, Stack, Text } from "@mantine/core";
import { Link, useRouteError } from "react-router";

import { Page } from "@/components/page";
import { ProblemNotice } from "@/components/problem-notice";

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
  return (
    <Page title="This page failed">
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

export function NotFoundPage() {
  return (
    <Page title="There is no such page">
      <Text>The address may be mistyped, or from another version of the dashboard.</Text>
      <Group>
        <Button component={Link} to="/jobs" variant="default">
          Back to the jobs
        </Button>
      </Group>
    </Page>
  );
}
