import { moment, utc } from "@/lib/format";

/** A time in the browser's zone, which is named; in UTC while the pointer is on it. */
export function Moment({ time }: { time: string | null }) {
  if (time === null) return <span className="soft">–</span>;
  return (
    <time dateTime={time} title={utc(time)} className="numeric">
      {moment(time)}
    </time>
  );
}
