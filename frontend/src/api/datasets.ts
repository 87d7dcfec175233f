import { queryOptions } from "@tanstack/react-query";

import { request } from "@/api/client";
import { submitJob } from "@/api/jobs";
import type { Dataset, Job, Page } from "@/api/types";
import { uniqueKey } from "@/lib/unique-key";

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
  return request<Dataset>("/datasets", {
    method: "POST",
    query: { team, name, format },
    body: file,
    headers: { "Content-Type": contentType(file.name) },
  });
}

/** Where the format is `auto`, it goes by this. */
function contentType(file: string): string {
  if (/\.(jsonl|ndjson)$/i.test(file)) return "application/jsonl";
  return /\.parquet$/i.test(file) ? "application/vnd.apache.parquet" : "text/plain";
}

/** The job that tokenises it, with the default tokenizer; without, the first job that needs it does. */
export function prepareDataset({ name, team }: Dataset): Promise<Job> {
  const spec = {
    version: 1,
    name: `prepare-${name}`.slice(0, 100),
    team: team.name,
    prepare: { data: { source: `dataset:${name}` } },
  };
  return submitJob(spec, uniqueKey());
}
