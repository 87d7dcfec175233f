const STRIDE = 200;
const MAX_PIXELS = 2000;

/** About as many points as a chart can show, in steps, so that resizing a window rarely causes a request. */
export function pixels(width = window.innerWidth, density = window.devicePixelRatio): number {
  return Math.min(MAX_PIXELS, Math.ceil((width * Math.max(1, density)) / STRIDE) * STRIDE);
}
