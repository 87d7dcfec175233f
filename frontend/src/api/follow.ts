import { useEffect, useEffectEvent } from "react";

import { address } from "@/api/client";
import type { JobEvent, Progress } from "@/api/types";

/** The newest numbers of a running job; they come without a place in the order of events. */
export interface ProgressChange {
  type: "job.progress";
  job_id: string;
  progress: Progress;
  log_lines: number;
}

export interface Following {
  onEvent: (event: JobEvent) => void;
  onProgress: (change: ProgressChange) => void;
  /** False while there is no stream; pollers then use their normal interval. */
  onLive: (live: boolean) => void;
}

const REFUSED_RETRY_MS = 15_000;

/**
 * Follow a stream of events for as long as the page can be seen: a browser opens few connections to one server, and a
 * tab in the background needs none. The browser itself comes back, with the last id, after a cut connection; after
 * a refusal it does not, so that is done here.
 */
function follow(path: string, following: Following): () => void {
  let source: EventSource | null = null;
  let again = 0;
  const close = () => {
    window.clearTimeout(again);
    source?.close();
    source = null;
  };
  const open = () => {
    close();
    if (document.visibilityState === "hidden") return;
    source = new EventSource(address(path), { withCredentials: true });
    source.onopen = () => following.onLive(true);
    source.onmessage = (message: MessageEvent<string>) => following.onEvent(JSON.parse(message.data) as JobEvent);
    source.addEventListener("job.progress", (message: MessageEvent<string>) =>
      following.onProgress(JSON.parse(message.data) as ProgressChange),
    );
    source.onerror = () => {
      following.onLive(false);
      if (source?.readyState === EventSource.CLOSED) again = window.setTimeout(open, REFUSED_RETRY_MS);
    };
  };
  const look = () => {
    if (document.visibilityState === "hidden") {
      close();
      following.onLive(false);
    } else {
      open();
    }
  };
  document.addEventListener("visibilitychange", look);
  open();
  return () => {
    document.removeEventListener("visibilitychange", look);
    close();
    following.onLive(false);
  };
}

/** `path` null follows nothing. The handlers may change without the stream being reopened. */
export function useFollow(path: string | null, following: Following): void {
  const onEvent = useEffectEvent(following.onEvent);
  const onProgress = useEffectEvent(following.onProgress);
  const onLive = useEffectEvent(following.onLive);
  useEffect(() => {
    if (path === null) return undefined;
    return follow(path, {
      onEvent: (event) => onEvent(event),
      onProgress: (change) => onProgress(change),
      onLive: (live) => onLive(live),
    });
  }, [path]);
}
