/** Run `act` immediately and then at most every `ms`, including the last call: many changes in a burst are one. */
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
