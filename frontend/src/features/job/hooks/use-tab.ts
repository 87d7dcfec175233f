import { useSearchParams } from "react-router";

export const TABS = ["overview", "logs", "outputs", "spec"] as const;
export type Tab = (typeof TABS)[number];

/** Which tab is open is part of the address: a link to a job's logs is a link to its logs. */
export function useTab(): [Tab, (tab: string | null) => void] {
  const [search, setSearch] = useSearchParams();
  const tab = TABS.find((name) => name === search.get("tab")) ?? "overview";
  return [tab, (next) => setSearch(next && next !== "overview" ? { tab: next } : {}, { replace: true })];
}
