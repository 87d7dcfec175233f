import { useMemo, useState } from "react";

import type { Series } from "@/api/types";
import { Plot } from "@/charts/plot";
import type { Axis, Cursor, Line, PlotLook, Zoom } from "@/charts/plot-options";
import type { Unit } from "@/charts/units";
import { reading } from "@/charts/units";
import { Panel } from "@/components/panel";
import { count, day, duration } from "@/lib/format";
import type { Column } from "@/lib/series";
import { align, downsample, smooth } from "@/lib/series";

import classes from "./chart-card.module.css";

export interface ChartLine {
  label: string;
  color: string;
  series: Pick<Series, "steps" | "values">;
  marked?: boolean;
}

interface ChartCardProps {
  title: string;
  lines: ChartLine[];
  axis: Axis;
  group: string;
  logarithmic?: boolean;
  /** 0: none, below 1: the weight of the past. */
  smoothing?: number;
  unit: Unit;
  height?: number;
  /** Called with the card's title, so that one function serves many charts. */
  onZoom?: (chart: string, zoom: Zoom | null) => void;
}

/** More points than a wide screen has pixels only cost time. */
const DRAWN_POINTS = 1600;

interface Drawn {
  look: Line[];
  columns: Pick<Series, "steps" | "values">[];
  /** For each line of the card, the column whose value its legend shows. */
  shown: number[];
}

function drawn(lines: ChartLine[], smoothing: number): Drawn {
  const result: Drawn = { look: [], columns: [], shown: [] };
  for (const line of lines) {
    const series = downsample({ times: [], ...line.series }, DRAWN_POINTS);
    const base: Line = { label: line.label, color: line.color };
    if (line.marked) base.marked = true;
    if (smoothing > 0 && !line.marked) {
      result.look.push({ ...base, faint: true });
      result.columns.push(series);
      result.columns.push({ steps: series.steps, values: smooth(series.values, smoothing) });
    } else {
      result.columns.push(series);
    }
    result.look.push(base);
    result.shown.push(result.columns.length - 1);
  }
  return result;
}

function lastValue(series: Pick<Series, "values">): number | null {
  return series.values.findLast((value) => value !== null) ?? null;
}

/** One chart with its chrome: title, legend that reads the cursor (or the last value), and words for the picture. */
export function ChartCard(props: ChartCardProps) {
  const { title, lines, axis, group, logarithmic = false, smoothing = 0, unit, height = 230, onZoom } = props;
  const [cursor, setCursor] = useState<Cursor | null>(null);
  const content = useMemo(() => drawn(lines, smoothing), [lines, smoothing]);
  const data = useMemo(() => align(content.columns), [content]);
  const tellZoom = onZoom && ((zoom: Zoom | null) => onZoom(title, zoom));
  const look: PlotLook = { axis, unit, logarithmic, lines: content.look, group };

  const at = cursor === null ? null : data[0][cursor.axis];
  const readings = lines.map((line, index) => {
    const column = content.shown[index] as number;
    const place = cursor?.lines[column];
    const under = place == null ? null : (data[column + 1] as Column)[place];
    const value = cursor === null ? lastValue(content.columns[column] as Series) : under;
    return { ...line, text: reading(value, unit) };
  });
  const empty = lines.every((line) => line.series.steps.length === 0);
  const summary = `${title}: ${readings.map((line) => `${line.label} ${line.text}`).join(", ")}`;

  const legend = (
    <div className={classes.legend} aria-hidden="true">
      {at == null ? null : (
        <span className="soft">{{ step: `step ${count(at)}`, time: duration(at), day: day(at) }[axis]}</span>
      )}
      {readings.map((line) => (
        <span key={line.label} className={classes.reading}>
          <span className={classes.swatch} style={{ background: `var(${line.color})` }} />
          {readings.length > 1 ? <span className="soft">{line.label}</span> : null}
          {line.text}
        </span>
      ))}
    </div>
  );
  return (
    <Panel title={title} tools={empty ? null : legend}>
      {empty ? (
        <div className={classes.empty} style={{ height }}>
          No values yet
        </div>
      ) : (
        <Plot look={look} data={data} height={height} summary={summary} onCursor={setCursor} onZoom={tellZoom} />
      )}
    </Panel>
  );
}
