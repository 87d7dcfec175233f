import { ago, localAndUtc } from "@/lib/format";

/** `now` comes from the page, so that a table of a thousand rows has one clock. */
export function TimeAgo({ time, now }: { time: string | null; now: number }) {
  if (time === null) return <span className="soft">–</span>;
  return (
    <time dateTime={time} title={localAndUtc(time)} className="numeric">
      {ago(time, now)}
    </time>
  );
}
