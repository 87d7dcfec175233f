import type { Zoom } from "@/charts/plot-options";

/** The stretch that holds what each of several charts shows closely; null while all show everything. */
export function union(zooms: (Zoom | null)[]): Zoom | null {
  const close = zooms.filter((zoom) => zoom !== null);
  if (close.length === 0) return null;
  return { from: Math.min(...close.map((zoom) => zoom.from)), to: Math.max(...close.map((zoom) => zoom.to)) };
}
