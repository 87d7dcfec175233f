import { queryOptions } from "@tanstack/react-query";

import { request } from "@/api/client";
import type { Dataset, Page } from "@/api/types";

export const datasetsKey = ["datasets"] as const;

export function datasetsQuery() {
  return queryOptions({
    queryKey: datasetsKey,
    queryFn: ({ signal }) => request<Page<Dataset>>("/datasets", { query: { limit: 200 }, signal }),
  });
}

export interface Upload {
  team: string;
  name: string;
  format: string;
  file: File;
}

/** The file is the body as it is: the browser streams it from the disk, however large. */
export function uploadDataset({ team, name, format, file }: Upload): Promise<Dataset> {
  const lines = format === "jsonl" || (format === "auto" && /\.(jsonl|ndjson)$/i.test(file.name));
  return request<Dataset>("/datasets", {
    method: "POST",
    query: { team, name, format },
    body: file,
    headers: { "Content-Type": lines ? "application/jsonl" : "text/plain" },
  });
}
