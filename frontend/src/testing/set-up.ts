import { cleanup, configure } from "@testing-library/react";
import { notifications } from "@mantine/notifications";
import { afterEach, beforeEach, vi } from "vitest";

import { server } from "@/testing/server";

// What jsdom lacks and the components use: sizes, media queries, streams and a canvas to draw on.

class NoResizes {
  observe() {
    return undefined;
  }
  unobserve() {
    return undefined;
  }
  disconnect() {
    return undefined;
  }
}

/** A stream of events that never opens, so that pages use their polling. */
class NoStream extends EventTarget {
  static readonly CLOSED = 2;
  readonly readyState = 0;
  close() {
    return undefined;
  }
}

class NoPath {
  moveTo() {
    return undefined;
  }
  lineTo() {
    return undefined;
  }
  rect() {
    return undefined;
  }
  arc() {
    return undefined;
  }
}

/** Accepts each drawing call; measures text as ten pixels. */
const noContext = new Proxy(
  {},
  {
    get: (_, name) => (name === "measureText" ? () => ({ width: 10 }) : () => undefined),
    set: () => true,
  },
);

vi.stubGlobal("ResizeObserver", NoResizes);
vi.stubGlobal("EventSource", NoStream);
vi.stubGlobal("Path2D", NoPath);
vi.stubGlobal("matchMedia", (query: string) => ({
  matches: false,
  media: query,
  addEventListener: () => undefined,
  removeEventListener: () => undefined,
}));
window.HTMLElement.prototype.scrollIntoView = () => undefined;
window.scrollTo = () => undefined;
window.HTMLCanvasElement.prototype.getContext = (() => noContext) as never;
window.Range.prototype.getClientRects = () => [] as unknown as DOMRectList;
window.Range.prototype.getBoundingClientRect = () => new DOMRect();

configure({ asyncUtilTimeout: 5_000 });

beforeEach(() => server.start());

afterEach(() => {
  cleanup();
  notifications.clean();
  window.localStorage.clear();
  server.stop();
});
