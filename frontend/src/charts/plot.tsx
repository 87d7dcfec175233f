import { useComputedColorScheme } from "@mantine/core";
import { useEffect, useRef } from "react";
import uPlot from "uplot";

import type { Cursor, PlotLook, Zoom } from "@/charts/plot-options";
import { plotOptions } from "@/charts/plot-options";
import type { Column } from "@/lib/series";

import classes from "./plot.module.css";

interface PlotProps {
  look: PlotLook;
  data: [number[], ...Column[]];
  height: number;
  /** Read out in place of the picture. */
  summary: string;
  onCursor: (cursor: Cursor | null) => void;
  /** Null: the full axis is shown. */
  onZoom?: ((zoom: Zoom | null) => void) | undefined;
  /** What to show when the plot is made; afterwards the reader zooms. */
  zoom?: Zoom | null;
}

/** Whether the reader has zoomed in: then new points must not move what is looked at. */
function isZoomed(plot: uPlot): boolean {
  const axis = plot.data[0];
  const { min, max } = plot.scales.x ?? {};
  if (axis.length < 2 || min == null || max == null) return false;
  return min > (axis[0] as number) || max < (axis[axis.length - 1] as number);
}

function zoomOf(plot: uPlot): Zoom | null {
  const { min, max } = plot.scales.x ?? {};
  return isZoomed(plot) && min != null && max != null ? { from: min, to: max } : null;
}

/** uPlot, made once per look and fed with data: only a change of axes or colours recreates it. */
export function Plot({ look, data, height, summary, onCursor, onZoom, zoom = null }: PlotProps) {
  const frame = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot>(null);
  const newest = useRef(data);
  const drawn = useRef(data);
  const report = useRef({ onCursor, onZoom });
  const shown = useRef(zoom);
  const scheme = useComputedColorScheme("light");
  // The look is rebuilt by each render of the page; only its content decides.
  const lookKey = JSON.stringify(look);

  useEffect(() => {
    newest.current = data;
    report.current = { onCursor, onZoom };
    shown.current = zoom;
  }, [data, onCursor, onZoom, zoom]);

  useEffect(() => {
    const element = frame.current;
    if (element === null) return;
    const made = new uPlot(
      plotOptions(
        JSON.parse(lookKey) as PlotLook,
        { width: element.clientWidth, height },
        (cursor) => report.current.onCursor(cursor),
        (plot) => report.current.onZoom?.(zoomOf(plot)),
        shown.current,
      ),
      newest.current,
      element,
    );
    plot.current = made;
    drawn.current = newest.current;
    const observer = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height }));
    observer.observe(element);
    return () => {
      observer.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [lookKey, height, scheme]);

  useEffect(() => {
    // What the plot was made with needs no second drawing, which would end its zoom.
    if (plot.current === null || drawn.current === data) return;
    drawn.current = data;
    plot.current.setData(data, !isZoomed(plot.current));
  }, [data]);

  return <div ref={frame} className={classes.frame} style={{ height }} role="img" aria-label={summary} />;
}
