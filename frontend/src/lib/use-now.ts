import { useEffect, useState } from "react";

/** The time in milliseconds, renewed each `interval` while `live`; the last one stays otherwise. */
export function useNow(live = true, interval = 1000): number {
  const [now, setNow] = useState(() => Date.now());
  useEffect(() => {
    if (!live) return;
    const timer = setInterval(() => setNow(Date.now()), interval);
    return () => clearInterval(timer);
  }, [live, interval]);
  return now;
}
