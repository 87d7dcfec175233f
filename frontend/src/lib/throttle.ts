/** Runs `act` at once and then at most each `ms`, the last time included: many changes in a burst are one. */
export function throttled(act: () => void, ms: number): () => void {
  let waiting = false;
  let asked = false;
  const run = () => {
    asked = false;
    waiting = true;
    act();
    setTimeout(() => {
      waiting = false;
      if (asked) run();
    }, ms);
  };
  return () => {
    if (waiting) asked = true;
    else run();
  };
}
