import { ActionIcon, Menu } from "@mantine/core";
import type { ReactNode } from "react";
import { useMemo, useRef, useState } from "react";

import type { Series } from "@/api/types";
import { csvOf, pictureOf } from "@/charts/export";
import { Plot } from "@/charts/plot";
import type { Axis, Cursor, Line, PlotLook, Zoom } from "@/charts/plot-options";
import type { Unit } from "@/charts/units";
import { reading } from "@/charts/units";
import { DownloadIcon } from "@/components/icons";
import { Panel } from "@/components/panel";
import { count, day, duration } from "@/lib/format";
import { saveFile } from "@/lib/save-file";
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
  /** What the chart shows when it is made. */
  zoom?: Zoom | null;
  /** Further controls in its head. */
  tools?: ReactNode;
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

const UNDER: Record<Axis, string> = { step: "step", tokens: "tokens", time: "seconds", day: "unix_time" };
const AT: Record<Axis, (at: number) => string> = {
  step: (at) => `step ${count(at)}`,
  tokens: (at) => `${count(at)} tokens`,
  time: duration,
  day,
};

function hasPositive(line: ChartLine): boolean {
  return line.series.values.some((value) => value !== null && value > 0);
}

function positiveOnly(line: ChartLine): ChartLine {
  const values = line.series.values.map((value) => (value !== null && value > 0 ? value : null));
  return { ...line, series: { steps: line.series.steps, values } };
}

function lastValue(series: Pick<Series, "values">): number | null {
  return series.values.findLast((value) => value !== null) ?? null;
}

/** One chart with its chrome: title, legend that reads the cursor (or the last value), and words for the picture. */
export function ChartCard(props: ChartCardProps) {
  const { title, lines, axis, group, logarithmic = false, smoothing = 0, unit, height = 230, onZoom, zoom = null, tools } = props;
  const [cursor, setCursor] = useState<Cursor | null>(null);
  const frame = useRef<HTMLDivElement>(null);
  // A logarithmic scale has no place for zero and less: there the line has a gap.
  const onLog = useMemo(() => logarithmic && lines.some(hasPositive), [logarithmic, lines]);
  const content = useMemo(
    () => drawn(onLog ? lines.map(positiveOnly) : lines, smoothing),
    [lines, smoothing, onLog],
  );
  const data = useMemo(() => align(content.columns), [content]);
  const tellZoom = onZoom && ((zoom: Zoom | null) => onZoom(title, zoom));
  const look: PlotLook = { axis, unit, logarithmic: onLog, lines: content.look, group };

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

  const file = title.toLowerCase().replaceAll(/[^a-z0-9]+/g, "-").replaceAll(/^-|-$/g, "");
  const savePoints = () => saveFile(`${file}.csv`, new Blob([csvOf(UNDER[axis], lines)], { type: "text/csv" }));
  const savePicture = () => {
    const canvas = frame.current?.querySelector("canvas");
    if (!canvas) return;
    const texts = readings.map((line) => ({ text: `${line.label} ${line.text}`, color: line.color }));
    pictureOf(canvas, title, texts).toBlob((picture) => {
      if (picture) saveFile(`${file}.png`, picture);
    });
  };

  const legend = (
    <div className={classes.legend} aria-hidden="true">
      {at == null ? null : (
        <span className="soft">{AT[axis](at)}</span>
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
    <Panel
      title={title}
      tools={
        <div className={classes.tools}>
          {empty ? null : legend}
          {empty ? null : <DownloadMenu title={title} onPicture={savePicture} onPoints={savePoints} />}
          {tools}
        </div>
      }
    >
      {empty ? (
        <div className={classes.empty} style={{ height }}>
          No values yet
        </div>
      ) : (
        <div ref={frame}>
          <Plot
            look={look}
            data={data}
            height={height}
            summary={summary}
            onCursor={setCursor}
            onZoom={tellZoom}
            zoom={zoom}
          />
        </div>
      )}
    </Panel>
  );
}

interface DownloadMenuProps {
  title: string;
  onPicture: () => void;
  onPoints: () => void;
}

function DownloadMenu({ title, onPicture, onPoints }: DownloadMenuProps) {
  return (
    <Menu position="bottom-end">
      <Menu.Target>
        <ActionIcon variant="subtle" color="gray" size="sm" aria-label={`Download ${title}`}>
          <DownloadIcon size={15} />
        </ActionIcon>
      </Menu.Target>
      <Menu.Dropdown>
        <Menu.Item onClick={onPicture}>Picture (PNG)</Menu.Item>
        <Menu.Item onClick={onPoints}>Points drawn (CSV)</Menu.Item>
      </Menu.Dropdown>
    </Menu>
  );
}
