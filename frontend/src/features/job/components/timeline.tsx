import { Button } from "@mantine/core";
import { useState } from "react";

import type { JobEvent } from "@/api/types";
import { describeEvent } from "@/features/job/lib/describe-event";
import { clock, localAndUtc } from "@/lib/format";

import classes from "./timeline.module.css";

const SHOWN_AT_FIRST = 16;

/** Newest first: what happens now is what one comes to see. */
export function Timeline({ events }: { events: JobEvent[] }) {
  const [all, setAll] = useState(false);
  const newest = events
    .map((event) => ({ event, said: describeEvent(event) }))
    .filter(({ said }) => said !== null)
    .reverse();
  if (newest.length === 0) return <span className="soft">No events yet</span>;
  return (
    <>
      <ol className={classes.list} reversed>
        {newest.slice(0, all ? undefined : SHOWN_AT_FIRST).map(({ event, said }) => (
          <li key={event.seq} className={classes.event} data-tone={said?.tone}>
            <div className={classes.text}>{said?.text}</div>
            <div className={classes.meta}>
              <time dateTime={event.time} title={localAndUtc(event.time)}>
                {clock(event.time)}
              </time>
              {said?.actor ? ` · ${said.actor}` : ""}
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
