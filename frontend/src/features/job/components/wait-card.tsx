import { Anchor, Group, Stack, Text } from "@mantine/core";
import { Link } from "react-router";

import type { Job } from "@/api/types";
import { Panel } from "@/components/panel";
import { shortId } from "@/lib/format";
import { useNow } from "@/lib/use-now";
import { expectedStart, holders, place, waitsFor } from "@/lib/wait";

function Fact({ name, children }: { name: string; children: React.ReactNode }) {
  return (
    <div>
      <Text size="xs" c="dimmed" component="dt">
        {name}
      </Text>
      <Text size="sm" component="dd" m={0}>
        {children}
      </Text>
    </div>
  );
}

/** Shows what blocks a waiting job, which teams hold the slots, what would unblock it, its queue position and start. */
export function WaitCard({ job }: { job: Job }) {
  const now = useNow(true, 1_000);
  const { wait } = job;
  if (wait === null || job.desired !== "run") return null;
  const { blocker } = wait;
  const held = holders(wait);
  const start = expectedStart(wait, now);
  return (
    <Panel title="Queue status">
      <Stack gap="sm">
        {wait.unblocks ? (
          <Text size="sm" fw={550}>
            {wait.unblocks}
          </Text>
        ) : null}
        <Group component="dl" gap="xl" m={0} align="flex-start">
          {start ? <Fact name="Starts">{start}</Fact> : null}
          {place(wait) ? <Fact name="Queue position">{place(wait)}</Fact> : null}
          {waitsFor(wait) ? <Fact name="Waits for">{waitsFor(wait)}</Fact> : null}
          {held ? <Fact name="Held by">{held}</Fact> : null}
          {blocker && blocker.own_jobs.length > 0 ? (
            <Fact name="Your team's jobs among them">
              {blocker.own_jobs.map((id) => (
                <Anchor key={id} component={Link} to={`/jobs/${id}`} size="sm" className="mono" mr={8}>
                  {shortId(id)}
                </Anchor>
              ))}
            </Fact>
          ) : null}
        </Group>
        <Anchor component={Link} to="/queue" size="sm">
          Show the queue
        </Anchor>
      </Stack>
    </Panel>
  );
}
