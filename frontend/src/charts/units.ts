import { bytes, count, duration, loss, NOTHING, percent } from "@/lib/format";

/** What a chart's values are: how they are written in its legend, and (shorter) along its axis. */
export type Unit = "loss" | "count" | "bytes" | "seconds" | "fraction" | "celsius" | "watts" | "megahertz" | "plain";

/** Four significant digits; exponents for learning rates. */
export function plainNumber(value: number): string {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 0.001) return value.toExponential(1).replace("e-", "e−");
  return size >= 1000 ? count(value) : String(Number(value.toPrecision(4)));
}

const WRITTEN: Record<Unit, (value: number) => string> = {
  loss,
  count,
  bytes,
  seconds: duration,
  fraction: percent,
  celsius: (value) => `${plainNumber(value)} °C`,
  watts: (value) => `${plainNumber(value)} W`,
  megahertz: (value) => `${Math.round(value)} MHz`,
  plain: plainNumber,
};

const ENDINGS: [string, Unit][] = [
  ["_seconds", "seconds"],
  ["_bytes", "bytes"],
  ["_per_second", "count"],
  ["loss", "loss"],
];

/** The unit that the name of a series says. */
export function unitOf(series: string): Unit {
  if (/mfu/.test(series)) return "fraction";
  return ENDINGS.find(([ending]) => series.endsWith(ending))?.[1] ?? "plain";
}

export function reading(value: number | null | undefined, unit: Unit): string {
  return value == null ? NOTHING : WRITTEN[unit](value);
}

export function tick(value: number, unit: Unit): string {
  return unit === "loss" ? plainNumber(value) : WRITTEN[unit](value);
}
