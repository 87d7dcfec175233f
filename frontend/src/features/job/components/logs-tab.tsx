import { Button, Group, NativeSelect, Switch, TextInput } from "@mantine/core";
import { useDebouncedValue } from "@mantine/hooks";
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";

import type { Job, LogLine } from "@/api/types";
import { SearchIcon } from "@/components/icons";
import { Panel } from "@/components/panel";
import { ProblemNotice } from "@/components/problem-notice";
import { logsQuery } from "@/features/job/api/queries";
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
  const logs = useQuery(logsQuery(job, { grep, rank }, useQueryClient()));
  const lines = logs.data?.lines ?? [];
  const last = lines.at(-1)?.cursor;

  useEffect(() => {
    if (follow && frame.current) frame.current.scrollTop = frame.current.scrollHeight;
  }, [follow, last, grep, rank]);

  const noticeScroll = () => {
    const element = frame.current;
    if (element === null) return;
    const end = element.scrollHeight - element.scrollTop - element.clientHeight < AT_THE_END_PX;
    if (end !== follow) setFollow(end);
  };
  const save = () => {
    const text = lines.map((line) => `${line.time} rank=${line.rank} ${plain(line.text)}`).join("\n");
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text, "\n"], { type: "text/plain" }));
    link.download = `${job.name}.log`;
    link.click();
    URL.revokeObjectURL(link.href);
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
        <Switch
          label="Follow"
          checked={follow}
          onChange={(event) => setFollow(event.currentTarget.checked)}
        />
        <Button variant="subtle" size="compact-sm" onClick={save} disabled={lines.length === 0}>
          Download lines
        </Button>
      </Group>
      {logs.error ? <ProblemNotice error={logs.error} onRetry={() => void logs.refetch()} /> : null}
      {/* A scrolled region is reached by the keyboard only when it can have the focus. */}
      {/* eslint-disable-next-line jsx-a11y/no-noninteractive-tabindex */}
      <div ref={frame} className={classes.frame} onScroll={noticeScroll} tabIndex={0} role="log" aria-label="Log">
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
