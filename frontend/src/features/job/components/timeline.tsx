import { Button } from "@mantine/core";
import { useState } from "react";

import type { JobEvent } from "@/api/types";
import { clock, moment } from "@/lib/format";
import { label } from "@/lib/status";

import classes from "./timeline.module.css";

const SHOWN_AT_FIRST = 14;

function eventTone(event: JobEvent): string {
  const said = `${event.type} ${typeof event.data.to === "string" ? event.data.to : ""}`;
  if (/fail|error|killed|lost|diverged/.test(said)) return "bad";
  if (/succeeded|completed|artifact|exported/.test(said)) return "good";
  if (/warn|cancel|stop|retry|preempt|queued/.test(said)) return "waiting";
  if (/running|training|starting/.test(said)) return "active";
  return "muted";
}

/** Newest first: what happens now is what one comes to see. */
export function Timeline({ events }: { events: JobEvent[] }) {
  const [all, setAll] = useState(false);
  const newest = [...events].reverse();
  const shown = all ? newest : newest.slice(0, SHOWN_AT_FIRST);
  if (events.length === 0) return <span className="soft">No events yet</span>;
  return (
    <>
      <ol className={classes.list} reversed>
        {shown.map((event) => (
          <li key={event.seq} className={classes.event} data-tone={eventTone(event)}>
            <div className={classes.text}>{event.message || label(event.type.replaceAll(".", " "))}</div>
            <div className={classes.meta}>
              <time dateTime={event.time} title={moment(event.time)}>
                {clock(event.time)}
              </time>
              {event.actor ? ` · ${event.actor}` : ""}
            </div>
          </li>
        ))}
      </ol>
      {newest.length > SHOWN_AT_FIRST ? (
        <Button variant="subtle" size="compact-sm" mt={8} onClick={() => setAll(!all)}>
          {all ? "Show fewer" : `Show all ${newest.length}`}
        </Button>
      ) : null}
    </>
  );
}
