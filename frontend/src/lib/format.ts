/** Numbers and times as people read them. Every function takes null and answers with a dash. */

export const NOTHING = "–";

const COUNT_UNITS: [number, string][] = [
  [1e12, "T"],
  [1e9, "B"],
  [1e6, "M"],
  [1e3, "k"],
];

function digits(value: number): string {
  const size = Math.abs(value);
  const decimals = size >= 100 ? 0 : size >= 10 ? 1 : 2;
  return String(Number(value.toFixed(decimals)));
}

/** 1234567 -> "1.23M"; the letters of the field: B for billion, as in "8B". */
export function count(value: number | null | undefined): string {
  if (value == null || !Number.isFinite(value)) return NOTHING;
  for (const [size, unit] of COUNT_UNITS) {
    // 999,960 rounds to 1000k: it is shown as 1M.
    if (Math.abs(value) >= size * 0.9995) return `${digits(value / size)}${unit}`;
  }
  return digits(value);
}

const BYTE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function bytes(value: number | null | undefined): string {
  if (value == null || !Number.isFinite(value)) return NOTHING;
  let size = value;
  let unit = 0;
  while (size >= 1023.95 && unit < BYTE_UNITS.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? String(Math.round(size)) : digits(size)} ${BYTE_UNITS[unit] ?? "B"}`;
}

/** Seconds -> "20 µs", "850 ms", "4.2 s", "3m 05s", "2h 10m", "3d 4h". */
export function duration(seconds: number | null | undefined): string {
  if (seconds == null || !Number.isFinite(seconds)) return NOTHING;
  if (seconds > 0 && seconds < 0.000_999_5) return `${Math.max(1, Math.round(seconds * 1e6))} µs`;
  if (seconds < 0.9995) return `${Math.max(0, Math.round(seconds * 1000))} ms`;
  if (seconds < 59.95) return `${seconds < 9.95 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const rounded = Math.round(seconds);
  if (rounded < 3600) return `${Math.floor(rounded / 60)}m ${String(rounded % 60).padStart(2, "0")}s`;
  const minutes = Math.round(rounded / 60);
  if (minutes < 1440) return `${Math.floor(minutes / 60)}h ${String(minutes % 60).padStart(2, "0")}m`;
  const hours = Math.round(rounded / 3600);
  return `${Math.floor(hours / 24)}d ${hours % 24}h`;
}

const FIGURE_UNITS: [number, string][] = [
  [1e12, "T"],
  [1e9, "G"],
  [1e6, "M"],
];
const SECOND_UNITS: [number, string][] = [
  [1, "s"],
  [1e-3, "ms"],
];

/** A figure of a preflight with three digits: "2.04 TB/s", "312 TFLOP/s", "32 µs". */
export function figure(
  value: number | null | undefined,
  unit: "flop_per_second" | "bytes_per_second" | "seconds",
): string {
  if (value == null || !Number.isFinite(value)) return NOTHING;
  if (unit === "seconds") {
    const [second, name] = SECOND_UNITS.find(([limit]) => value >= limit * 0.9995) ?? [1e-6, "µs"];
    return `${digits(value / second)} ${name}`;
  }
  const [size, prefix] = FIGURE_UNITS.find(([limit]) => value >= limit * 0.9995) ?? [1e3, "k"];
  return `${digits(value / size)} ${prefix}${unit === "flop_per_second" ? "FLOP/s" : "B/s"}`;
}

/** A loss: four significant decimals are what people compare. */
export function loss(value: number | null | undefined): string {
  return value == null || !Number.isFinite(value) ? NOTHING : value.toFixed(4);
}

export function percent(fraction: number | null | undefined): string {
  return fraction == null || !Number.isFinite(fraction) ? NOTHING : `${digits(fraction * 100)}%`;
}

export function money(amount: number, currency: string): string {
  const digits = amount.toLocaleString("en-GB", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
  return `${digits} ${currency}`.trimEnd();
}

/** With all its digits: a price is multiplied by thousands of hours. */
export function priceText(price: string | number, currency = ""): string {
  const digits = Number(price).toLocaleString("en-GB", { maximumFractionDigits: 6 });
  return `${digits} ${currency}`.trimEnd();
}

/** Between two RFC 3339 times, in seconds; up to `now` while there is no end. */
export function elapsed(start: string | null, end: string | null, now: number): number | null {
  if (start === null) return null;
  const until = end === null ? now : Date.parse(end);
  return Math.max(0, (until - Date.parse(start)) / 1000);
}

export function ago(time: string | null, now: number): string {
  if (time === null) return NOTHING;
  const seconds = (now - Date.parse(time)) / 1000;
  if (seconds < 5) return "just now";
  if (seconds < 60) return `${Math.floor(seconds)}s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)}m ago`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)}h ago`;
  return `${Math.floor(seconds / 86_400)}d ago`;
}

const CLOCK = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
const MOMENT: Intl.DateTimeFormatOptions = {
  day: "numeric",
  month: "short",
  year: "numeric",
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  timeZoneName: "short",
};
const LOCAL = new Intl.DateTimeFormat("en-GB", MOMENT);
const UTC = new Intl.DateTimeFormat("en-GB", { ...MOMENT, timeZone: "UTC" });

/** The time of day in the browser's zone; give it a title that names the zone. */
export function clock(time: string): string {
  return CLOCK.format(new Date(time));
}

/** Date and time in the browser's zone, which is named. */
export function moment(time: string | null): string {
  return time === null ? NOTHING : LOCAL.format(new Date(time));
}

export function utc(time: string): string {
  return UTC.format(new Date(time));
}

/** Both, for a title of what shows only a part of the time. */
export function localAndUtc(time: string): string {
  return `${moment(time)}, ${utc(time)}`;
}

const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", timeZone: "UTC" });

/** Seconds since 1970 -> "5 Nov", in UTC as the platform counts its days. */
export function day(seconds: number): string {
  return DAY.format(new Date(seconds * 1000));
}

export function shortId(id: string): string {
  return id.length > 14 ? `${id.slice(0, 4)}…${id.slice(-6)}` : id;
}
