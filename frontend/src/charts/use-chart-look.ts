import { useCallback, useEffect, useMemo, useState } from "react";

import type { TokenCounts } from "@/api/types";
import type { Zoom } from "@/charts/plot-options";
import { union } from "@/charts/zooms";
import { stepAfter } from "@/lib/series";
import { useSearchChanges } from "@/lib/use-search-changes";

/** What a training run's charts are drawn over. */
export const RUN_AXES = ["step", "tokens", "time"] as const;
export type RunAxis = (typeof RUN_AXES)[number];

export const MAX_SMOOTHING = 0.99;
const ZOOM = /^(\d+(?:\.\d+)?)-(\d+(?:\.\d+)?)$/;

function isRunAxis(name: string | null): name is RunAxis {
  return RUN_AXES.some((axis) => axis === name);
}

/** The weight of the past, from 0 to 0.99; 0 for anything else. */
function smoothingOf(written: string | null): number {
  const weight = Number(written);
  return weight > 0 && weight <= MAX_SMOOTHING ? weight : 0;
}

export function zoomOf(written: string | null): Zoom | null {
  const found = ZOOM.exec(written ?? "");
  if (found === null) return null;
  const [from, to] = [Number(found[1]), Number(found[2])];
  return from < to ? { from, to } : null;
}

function written(zoom: Zoom): string {
  const short = (at: number) => String(Math.max(0, Math.round(at * 10) / 10));
  return `${short(zoom.from)}-${short(zoom.to)}`;
}

/** The steps that a zoomed chart shows. Null on the axis of time: a second there is no step. */
export function stepsShown(axis: RunAxis, zoom: Zoom | null, counts: TokenCounts | null): Zoom | null {
  if (zoom === null || axis === "step") return zoom;
  if (axis === "time" || counts === null) return null;
  return { from: stepAfter(zoom.from, counts), to: stepAfter(zoom.to, counts) };
}

/** How the reader wants a page's charts drawn. It is part of the address: a link shows the same picture. */
export function useChartLook() {
  const [search, change] = useSearchChanges();
  const named = search.get("axis");
  const axis = isRunAxis(named) ? named : "step";
  const set = useCallback(
    (name: string, value: string | null) =>
      change((after) => {
        if (value === null) after.delete(name);
        else after.set(name, value);
      }),
    [change],
  );

  // Charts that zoom together show different ranges of one axis: each reports its own. Until one has, the address says.
  const addressed = search.get("zoom");
  const [zooms, setZooms] = useState<Record<string, Zoom | null> | null>(null);
  const zoom = useMemo(
    () => (zooms === null ? zoomOf(addressed) : union(Object.values(zooms))),
    [zooms, addressed],
  );
  const reportZoom = useCallback((chart: string, shown: Zoom | null) => {
    setZooms((before) => {
      const known = before?.[chart] ?? null;
      const same = before !== null && known?.from === shown?.from && known?.to === shown?.to;
      return same ? before : { ...before, [chart]: shown };
    });
  }, []);
  const zoomed = zooms === null ? addressed : zoom && written(zoom);
  useEffect(() => {
    if (zoomed !== addressed) set("zoom", zoomed);
  }, [zoomed, addressed, set]);

  const added = useMemo(() => [...new Set(search.getAll("chart"))], [search]);
  return {
    axis,
    setAxis: (next: RunAxis) => {
      // A range of steps is no range of seconds.
      setZooms({});
      change((after) => {
        after.delete("zoom");
        if (next === "step") after.delete("axis");
        else after.set("axis", next);
      });
    },
    smoothing: smoothingOf(search.get("smooth")),
    setSmoothing: (weight: number) => set("smooth", weight > 0 ? String(weight) : null),
    logarithmic: search.get("scale") === "log",
    setLogarithmic: (on: boolean) => set("scale", on ? "log" : null),
    /** Names of the series that the reader added to the usual charts. */
    added,
    add: (series: string) => change((after) => after.append("chart", series)),
    remove: (series: string) =>
      change((after) => {
        after.delete("chart");
        for (const name of added) if (name !== series) after.append("chart", name);
      }),
    zoom,
    reportZoom,
  };
}

export type ChartLook = ReturnType<typeof useChartLook>;
