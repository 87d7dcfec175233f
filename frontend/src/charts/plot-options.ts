import uPlot from "uplot";

import type { Unit } from "@/charts/units";
import { tick } from "@/charts/units";
import { count, day, duration } from "@/lib/format";

/** Steps; tokens; seconds since a beginning; or days, as seconds since 1970 in UTC. */
export type Axis = "step" | "tokens" | "time" | "day";

export interface Line {
  label: string;
  /** A custom property of tokens.css, so that a line follows the colour scheme. */
  color: string;
  /** The raw values behind a smoothed line. */
  faint?: boolean;
  /** Sparse measurements are marked: between two of them nothing was measured. */
  marked?: boolean;
}

/** Places in the data: on the axis, and for each line where its nearest value is (a sparse line has few). */
export interface Cursor {
  axis: number;
  lines: (number | null | undefined)[];
}

/** The part of the axis that a zoomed chart shows. */
export interface Zoom {
  from: number;
  to: number;
}

export interface PlotLook {
  axis: Axis;
  unit: Unit;
  logarithmic: boolean;
  lines: Line[];
  /** Charts of one group move their cursors and zoom together. */
  group: string;
}

/** uPlot declares its kinds of scale as a const enum, which a bundler of single files cannot read. */
// eslint-disable-next-line @typescript-eslint/no-unsafe-enum-assignment -- the number is all there is at run time
const LOGARITHMIC = 3 as uPlot.Scale.Distr;

const INTEGERS = Array.from({ length: 15 }, (_, power) => [1, 2, 5].map((lead) => lead * 10 ** power)).flat();

const MINUTE = 60;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;
const DAILY = [1, 2, 5, 7, 14, 30, 90, 365].map((days) => days * DAY);
const CLOCKWISE = [
  ...[1, 2, 5, 10, 15, 30],
  ...[1, 2, 5, 10, 15, 30].map((minutes) => minutes * MINUTE),
  ...[1, 2, 3, 6, 12].map((hours) => hours * HOUR),
  ...[1, 2, 5, 10, 20, 50, 100].map((days) => days * DAY),
];

function property(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function withAlpha(color: string, alpha: number): string {
  return `color-mix(in srgb, ${color} ${alpha * 100}%, transparent)`;
}

function line(look: Line): uPlot.Series {
  const color = property(look.color);
  const series: uPlot.Series = {
    label: look.label,
    stroke: look.faint ? withAlpha(color, 0.28) : color,
    width: look.faint ? 1 : 1.75,
  };
  if (look.marked) series.points = { show: true, size: 6, width: 1.5, fill: property("--surface") };
  else if (look.faint) series.points = { show: false };
  return series;
}

/** A flat or single-valued series still gets a readable range: half a percent around it. */
function range(_plot: uPlot, low: number, high: number): uPlot.Range.MinMax {
  if (!Number.isFinite(low) || !Number.isFinite(high)) return [0, 1];
  const pad = (high - low) * 0.08 || Math.abs(high) * 0.005 || 1;
  // No axis below zero for what cannot be negative.
  return [low >= 0 ? Math.max(0, low - pad) : low - pad, high + pad];
}

/** Half a decade around a single value; otherwise a little more than the values, as on a linear scale. */
function logRange(_plot: uPlot, low: number, high: number): uPlot.Range.MinMax {
  if (!Number.isFinite(low) || !Number.isFinite(high) || low <= 0) return [1, 10];
  const pad = (high / low) ** 0.08;
  return pad > 1 ? [low / pad, high * pad] : [low / 2, high * 2];
}

const FEW_TICKS = 3;
const MANY_TICKS = 7;

/** Ticks of a logarithmic axis: decades; with 2 and 5 where there is room; evenly spaced within a decade. */
export function logTicks(low: number, high: number): number[] {
  const first = Math.floor(Math.log10(low));
  const powers = Array.from({ length: Math.ceil(Math.log10(high)) - first + 1 }, (_, at) => first + at);
  const of = (leads: number[]) =>
    powers.flatMap((power) => leads.map((lead) => Number(`${lead}e${power}`))).filter((at) => at >= low && at <= high);
  const decades = of([1]);
  if (decades.length > MANY_TICKS) {
    const stride = Math.ceil(decades.length / MANY_TICKS);
    return decades.filter((_, at) => at % stride === 0);
  }
  if (decades.length > FEW_TICKS) return decades;
  const finer = of([1, 2, 5]);
  return finer.length >= FEW_TICKS ? finer : evenTicks(low, high);
}

function evenTicks(low: number, high: number): number[] {
  const rough = (high - low) / MANY_TICKS;
  const power = Math.floor(Math.log10(rough));
  const lead = [1, 2, 5, 10].find((one) => one * 10 ** power >= rough) ?? 10;
  const first = Math.ceil(low / (lead * 10 ** power));
  const last = Math.floor(high / (lead * 10 ** power));
  return Array.from({ length: last - first + 1 }, (_, at) => Number(`${(first + at) * lead}e${power}`));
}

function cursorOf(plot: uPlot): Cursor | null {
  const { idx, idxs } = plot.cursor;
  return idx == null ? null : { axis: idx, lines: idxs?.slice(1) ?? [] };
}

export function plotOptions(
  look: PlotLook,
  size: { width: number; height: number },
  onCursor: (cursor: Cursor | null) => void,
  onZoom: (plot: uPlot) => void,
  zoom: Zoom | null,
): uPlot.Options {
  const ink = property("--ink-soft");
  const rule = { stroke: property("--line"), width: 1 };
  const font = '11px "Geist Variable", system-ui, sans-serif';
  const showX = (at: number) => {
    if (look.axis === "day") return day(at);
    return at < 0 ? "" : at === 0 ? "0" : look.axis === "time" ? duration(at) : count(at);
  };
  return {
    ...size,
    legend: { show: false },
    padding: [10, look.axis === "day" ? 26 : 12, 0, 0],
    cursor: {
      sync: { key: look.group, setSeries: false },
      drag: { x: true, y: false },
      points: {
        size: 8,
        width: 2,
        stroke: () => property("--surface"),
        fill: (_plot, index) => property(look.lines[index - 1]?.color ?? "--ink"),
      },
    },
    scales: {
      x: zoom ? { time: false, min: zoom.from, max: zoom.to } : { time: false },
      y: look.logarithmic ? { distr: LOGARITHMIC, range: logRange } : { range },
    },
    axes: [
      {
        stroke: ink,
        font,
        grid: { show: false },
        ticks: { ...rule, size: 4 },
        size: 30,
        space: 64,
        // There is no half step, and no minute of a hundred seconds.
        incrs: { step: INTEGERS, tokens: INTEGERS, time: CLOCKWISE, day: DAILY }[look.axis],
        values: (_plot, splits) => splits.map(showX),
      },
      {
        stroke: ink,
        font,
        grid: rule,
        ticks: { show: false },
        size: 58,
        ...(look.logarithmic
          ? { splits: (_plot, _axis, low, high) => logTicks(low, high), filter: (_plot, splits) => splits }
          : {}),
        values: (_plot, splits) => splits.map((split) => tick(split, look.unit)),
      },
    ],
    series: [{}, ...look.lines.map(line)],
    hooks: {
      setCursor: [(plot) => onCursor(cursorOf(plot))],
      setScale: [
        (plot, key) => {
          if (key === "x") onZoom(plot);
        },
      ],
    },
  };
}
