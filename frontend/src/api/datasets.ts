import { queryOptions } from "@tanstack/react-query";

import { request } from "@/api/client";
import { submitJob } from "@/api/jobs";
import type { DataReport, Dataset, DatasetDetail, DatasetDiff, Inspection, Job, JobSummary, Page } from "@/api/types";
import { isFinal } from "@/lib/status";
import { uniqueKey } from "@/lib/unique-key";

export const datasetsKey = ["datasets"] as const;

const RUNNING_MS = 3_000;
const SAMPLE_BYTES = 512 * 1024;
const SHOWN_ROWS = 5;

export function datasetsQuery() {
  return queryOptions({
    queryKey: datasetsKey,
    queryFn: ({ signal }) => request<Page<Dataset>>("/datasets", { query: { limit: 200 }, signal }),
    refetchInterval: (query) =>
      query.state.data?.items.some((one) => one.preparation.state === "running") ? RUNNING_MS : false,
  });
}

export function datasetQuery(id: string) {
  return queryOptions({
    queryKey: [...datasetsKey, id],
    queryFn: ({ signal }) => request<DatasetDetail>(`/datasets/${encodeURIComponent(id)}`, { signal }),
    refetchInterval: (query) => (query.state.data?.preparation.state === "running" ? RUNNING_MS : false),
  });
}

/** All versions of a data set. */
export function versionsQuery({ name, team }: Pick<Dataset, "name" | "team">) {
  return queryOptions({
    queryKey: [...datasetsKey, "versions", team.id, name],
    queryFn: ({ signal }) =>
      request<Page<Dataset>>("/datasets", { query: { name, team: team.name, versions: "all", limit: 200 }, signal }),
  });
}

/** What a version has that another version has not, and the other way round. */
export function diffQuery(before: string, after: string) {
  return queryOptions({
    queryKey: [...datasetsKey, after, "diff", before],
    queryFn: ({ signal }) =>
      request<DatasetDiff>(`/datasets/${encodeURIComponent(after)}/diff`, { query: { from: before }, signal }),
    staleTime: Infinity, // versions never change, and each reading is audited
    retry: false,
  });
}

/** Points an alias of the data set to this version. */
export function pointDatasetAlias(id: string, alias: string): Promise<Dataset> {
  return request(`/datasets/${encodeURIComponent(id)}/aliases/${encodeURIComponent(alias)}`, { method: "PUT" });
}

export function removeDatasetAlias(id: string, alias: string): Promise<void> {
  return request(`/datasets/${encodeURIComponent(id)}/aliases/${encodeURIComponent(alias)}`, { method: "DELETE" });
}

export function previewQuery(id: string) {
  return queryOptions({
    queryKey: [...datasetsKey, id, "preview"],
    queryFn: ({ signal }) => request<Inspection>(`/datasets/${encodeURIComponent(id)}/preview`, { signal }),
    staleTime: Infinity, // a data set never changes, and each reading is audited
    retry: false,
  });
}

/** The newest report of a data set that this job made. */
export function reportQuery(id: string, job: string) {
  return queryOptions({
    queryKey: [...datasetsKey, id, "report", job],
    queryFn: ({ signal }) =>
      request<DataReport>(`/datasets/${encodeURIComponent(id)}/report`, { query: { job }, signal }),
    staleTime: Infinity, // a report never changes, and each reading is audited
    retry: false,
  });
}

export function datasetJobsQuery(id: string) {
  return queryOptions({
    queryKey: [...datasetsKey, id, "jobs"],
    queryFn: ({ signal }) => request<Page<JobSummary>>("/jobs", { query: { dataset: id, limit: 50 }, signal }),
    refetchInterval: (query) =>
      query.state.data?.items.some((job) => !isFinal(job.status)) ? RUNNING_MS : false,
  });
}

/** What a file holds, before it is uploaded: from its beginning, of parquet from its end. */
export function inspectionQuery(file: File, format: string) {
  return queryOptions({
    queryKey: ["inspection", file.name, file.size, file.lastModified, format],
    queryFn: ({ signal }) =>
      request<Inspection>("/datasets:inspect", {
        method: "POST",
        query: { name: file.name, format, rows: SHOWN_ROWS },
        body: isParquet(file.name, format) ? file.slice(-SAMPLE_BYTES) : file.slice(0, SAMPLE_BYTES),
        headers: { "Content-Type": "application/octet-stream" },
        signal,
      }),
    retry: false,
  });
}

export interface Upload {
  team: string;
  name: string;
  format: string;
  textField: string;
  isNewVersion: boolean;
  file: File;
}

/** The file is the body as it is: the browser streams it from the disk, however large. */
export function uploadDataset({ team, name, format, textField, isNewVersion, file }: Upload): Promise<Dataset> {
  return request<Dataset>("/datasets", {
    method: "POST",
    query: { team, name, format, text_field: textField, new_version: isNewVersion ? "true" : null },
    body: file,
    headers: { "Content-Type": isParquet(file.name, format) ? "application/vnd.apache.parquet" : "text/plain" },
  });
}

function isParquet(name: string, format: string): boolean {
  return format === "parquet" || (format === "auto" && /\.(parquet|pq)$/i.test(name));
}

/** `report-books-2` for `dataset:books@2`. */
function jobName(what: string, dataset: Pick<Dataset, "spec_source">): string {
  const source = dataset.spec_source.replace(/^dataset:/, "");
  return `${what}-${source}`.replaceAll(/[^A-Za-z0-9._-]/g, "-").slice(0, 100);
}

/** The job that tokenises it, with the default tokenizer; without, the first job that needs it does. */
export function prepareDataset(dataset: Pick<Dataset, "spec_source" | "team">): Promise<Job> {
  const spec = {
    version: 1,
    name: jobName("prepare", dataset),
    team: dataset.team.name,
    prepare: { data: { source: dataset.spec_source } },
  };
  return submitJob(spec, uniqueKey());
}

/** The job that makes a data report, with the default tokenizer. */
export function reportOnDataset(dataset: Pick<Dataset, "format" | "spec_source" | "team">, length: number): Promise<Job> {
  const pairs = { format: "preference", packing: "documents", long_documents: "drop" };
  const spec = {
    version: 1,
    name: jobName("report", dataset),
    team: dataset.team.name,
    prepare: {
      data: { source: dataset.spec_source, ...(dataset.format === "preference" ? pairs : {}) },
      report: { sequence_length: length },
    },
  };
  return submitJob(spec, uniqueKey());
}

/** Returns how many tokenised forms were discarded. */
export function forgetPreparations(id: string): Promise<{ forgotten: number }> {
  return request(`/datasets/${encodeURIComponent(id)}/preparations`, { method: "DELETE" });
}
