import { Button, Group, NativeSelect, Switch, TextInput } from "@mantine/core";
import { useDebouncedValue } from "@mantine/hooks";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect, useLayoutEffect, useRef, useState } from "react";

import type { Job, LogLine } from "@/api/types";
import { SearchIcon } from "@/components/icons";
import { Panel } from "@/components/panel";
import { ProblemNotice } from "@/components/problem-notice";
import { loadEarlierLines, logAddress, logsQuery } from "@/features/job/api/queries";
import { clock, localAndUtc } from "@/lib/format";
import { plain, splitMatches } from "@/lib/text";

import classes from "./logs-tab.module.css";

const TYPING_PAUSE_MS = 300;
const AT_THE_END_PX = 40;

function rankChoices(job: Job): { value: string; label: string }[] {
  const resources = job.resolved_spec.resources;
  const size = (name: string): number => {
    const value =
      resources !== null && typeof resources === "object" && !Array.isArray(resources) ? resources[name] : 1;
    return typeof value === "number" ? value : 1;
  };
  const ranks = Math.min(64, size("nodes") * size("processes_per_node"));
  return [
    { value: "", label: "All ranks" },
    ...Array.from({ length: ranks }, (_, rank) => ({ value: String(rank), label: `Rank ${rank}` })),
  ];
}

export function LogsTab({ job }: { job: Job }) {
  const [typed, setTyped] = useState("");
  const [rank, setRank] = useState("");
  const [follow, setFollow] = useState(true);
  const [grep] = useDebouncedValue(typed, TYPING_PAUSE_MS);
  const frame = useRef<HTMLDivElement>(null);
  const [attempt, setAttempt] = useState("");
  const client = useQueryClient();
  const filter = { grep, rank, attempt };
  const logs = useQuery(logsQuery(job, filter, client));
  const lines = logs.data?.lines ?? [];
  const last = lines.at(-1)?.cursor;
  const first = lines.at(0)?.cursor;
  /** Height of the lines before earlier ones were put in front of them. */
  const heightBefore = useRef<number | null>(null);

  useEffect(() => {
    if (follow && frame.current) frame.current.scrollTop = frame.current.scrollHeight;
  }, [follow, last, grep, rank, attempt]);

  // The line that was at the top stays there.
  useLayoutEffect(() => {
    if (heightBefore.current === null || frame.current === null) return;
    frame.current.scrollTop += frame.current.scrollHeight - heightBefore.current;
    heightBefore.current = null;
  }, [first]);

  const earlier = useMutation({
    mutationFn: () => {
      setFollow(false);
      heightBefore.current = frame.current?.scrollHeight ?? null;
      return loadEarlierLines(job, filter, client);
    },
  });

  const noticeScroll = () => {
    const element = frame.current;
    if (element === null) return;
    const end = element.scrollHeight - element.scrollTop - element.clientHeight < AT_THE_END_PX;
    if (end !== follow) setFollow(end);
  };

  return (
    <Panel flush>
      <Group className={classes.tools ?? ""} gap="sm">
        <TextInput
          type="search"
          aria-label="Show lines that contain"
          placeholder="Lines that contain…"
          leftSection={<SearchIcon size={16} />}
          value={typed}
          onChange={(event) => setTyped(event.currentTarget.value)}
          className={classes.search ?? ""}
        />
        <NativeSelect
          aria-label="Rank"
          data={rankChoices(job)}
          value={rank}
          onChange={(event) => setRank(event.currentTarget.value)}
        />
        {job.attempt_count > 1 ? (
          <NativeSelect
            aria-label="Attempt"
            data={[
              { value: "", label: "All attempts" },
              ...job.attempts.map(({ number }) => ({ value: String(number), label: `Attempt ${number}` })),
            ]}
            value={attempt}
            onChange={(event) => setAttempt(event.currentTarget.value)}
          />
        ) : null}
        <Switch
          label="Follow"
          checked={follow}
          onChange={(event) => setFollow(event.currentTarget.checked)}
        />
        <Button variant="subtle" size="compact-sm" component="a" href={logAddress(job, filter)} download>
          Download log
        </Button>
      </Group>
      {logs.error ? <ProblemNotice error={logs.error} onRetry={() => void logs.refetch()} /> : null}
      {earlier.error ? <ProblemNotice error={earlier.error} onRetry={() => earlier.mutate()} /> : null}
      {/* A scrolled region is reached by the keyboard only when it can have the focus. */}
      {/* eslint-disable-next-line jsx-a11y/no-noninteractive-tabindex */}
      <div ref={frame} className={classes.frame} onScroll={noticeScroll} tabIndex={0} role="log" aria-label="Log">
        {logs.data && logs.data.before !== null ? (
          <div className={classes.nothing}>
            <Button variant="subtle" size="compact-sm" loading={earlier.isPending} onClick={() => earlier.mutate()}>
              Load earlier lines
            </Button>
          </div>
        ) : null}
        {lines.map((line) => (
          <Line key={line.cursor} line={line} needle={grep} />
        ))}
        {lines.length === 0 && !logs.isPending ? (
          <div className={classes.nothing}>
            {grep ? `No line contains “${grep}”.` : "Nothing has been written yet."}
          </div>
        ) : null}
      </div>
    </Panel>
  );
}

function Line({ line, needle }: { line: LogLine; needle: string }) {
  return (
    <div className={classes.line} data-stream={line.stream}>
      <time dateTime={line.time} title={localAndUtc(line.time)}>
        {clock(line.time)}
      </time>
      <span className={classes.rank}>{line.stream === "agent" ? "agent" : line.rank}</span>
      <span className={classes.text}>
        {splitMatches(plain(line.text), needle).map((piece, index) =>
          // Pieces have no identity of their own: their order is all they are.
          index % 2 === 1 ? <mark key={index}>{piece}</mark> : piece,
        )}
      </span>
    </div>
  );
}
