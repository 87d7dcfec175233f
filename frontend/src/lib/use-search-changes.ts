import { useCallback, useEffect, useState } from "react";
import { useSearchParams } from "react-router";

/** Changes of an address, which follows them late: each change builds on the one before, arrived or not. */
export class SearchChanges {
  private sent: string[] = [];

  constructor(private newest: string) {}

  /** The address is this now. If a later change is on its way, that one stays the newest. */
  arrived(search: string): void {
    const at = this.sent.lastIndexOf(search);
    this.sent = this.sent.slice(at + 1);
    if (at >= 0) return;
    // Nothing that was sent from here: the reader went back, or followed a link.
    this.sent = [];
    this.newest = search;
  }

  /** The next address. */
  change(edit: (after: URLSearchParams) => void): URLSearchParams {
    const after = new URLSearchParams(this.newest);
    edit(after);
    this.newest = after.toString();
    this.sent.push(this.newest);
    return after;
  }
}

/** The parameters of the address, and a function that changes them in place. No change is lost, however fast they come. */
export function useSearchChanges(): [URLSearchParams, (edit: (after: URLSearchParams) => void) => void] {
  const [search, setSearch] = useSearchParams();
  const [changes] = useState(() => new SearchChanges(search.toString()));
  useEffect(() => {
    changes.arrived(search.toString());
  }, [changes, search]);
  const change = useCallback(
    (edit: (after: URLSearchParams) => void) => {
      setSearch(changes.change(edit), { replace: true });
    },
    [changes, setSearch],
  );
  return [search, change];
}
