import { useCallback, useMemo, useState } from "react";

import type { Zoom } from "@/charts/plot-options";

/** The stretch that holds what each of several charts shows closely; null while all show everything. */
export function union(zooms: (Zoom | null)[]): Zoom | null {
  const close = zooms.filter((zoom) => zoom !== null);
  if (close.length === 0) return null;
  return { from: Math.min(...close.map((zoom) => zoom.from)), to: Math.max(...close.map((zoom) => zoom.to)) };
}

/** Charts that zoom together show different ranges of one axis: each reports its own, one request covers them all. */
export function useZooms(): [Zoom | null, (chart: string, zoom: Zoom | null) => void] {
  const [zooms, setZooms] = useState<Record<string, Zoom | null>>({});
  const report = useCallback((chart: string, zoom: Zoom | null) => {
    setZooms((before) => {
      const known = before[chart] ?? null;
      const same = known?.from === zoom?.from && known?.to === zoom?.to;
      return same ? before : { ...before, [chart]: zoom };
    });
  }, []);
  return [useMemo(() => union(Object.values(zooms)), [zooms]), report];
}
