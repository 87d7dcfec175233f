import { useSearchParams } from "react-router";

export const TABS = ["overview", "logs", "outputs", "system", "spec"] as const;
export type Tab = (typeof TABS)[number];

/** Which tab is open is part of the address: a link to a job's logs is a link to its logs. */
export function useTab(): [Tab, (tab: string | null) => void] {
  const [search, setSearch] = useSearchParams();
  const tab = TABS.find((name) => name === search.get("tab")) ?? "overview";
  const open = (next: string | null) =>
    setSearch(
      (before) => {
        const after = new URLSearchParams(before);
        if (next && next !== "overview") after.set("tab", next);
        else after.delete("tab");
        return after;
      },
      { replace: true },
    );
  return [tab, open];
}
