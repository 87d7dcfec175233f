import { queryOptions } from "@tanstack/react-query";

import { request } from "@/api/client";
import { submitJob } from "@/api/jobs";
import type { Artifact, Checkpoint, Job, JsonObject, ModelVersion, Page, RegisteredModel } from "@/api/types";
import { uniqueKey } from "@/lib/unique-key";

/** Resources of a training that the export of one of its checkpoints gets too. */
const TAKEN = ["cluster", "accelerator", "nodes", "processes_per_node", "cpus_per_process", "memory_bytes_per_node"];

export interface Registration {
  model: string;
  alias: string;
}

async function modelsOf(job: Job, query: { name: string } | { limit: number }): Promise<RegisteredModel[]> {
  const { items } = await request<Page<RegisteredModel>>("/models", { query });
  return items.filter((each) => !each.is_shared && each.team.id === job.team.id);
}

/** The names of the newest models of the job's team. */
export function modelNamesQuery(job: Job) {
  return queryOptions({
    queryKey: ["models", "names", job.team.id],
    queryFn: async () => (await modelsOf(job, { limit: 200 })).map((each) => each.name),
  });
}

/** Registers an export as the next version of a model, which is created if the team has none of this name. */
export async function registerArtifact(job: Job, artifact: Artifact, { model, alias }: Registration): Promise<ModelVersion> {
  const first = { artifact: artifact.id, ...(alias ? { alias } : {}) };
  const [found] = await modelsOf(job, { name: model });
  if (!found) {
    const { id } = await request<RegisteredModel>("/models", { method: "POST", json: { name: model, team: job.team.name, ...first } });
    return request<ModelVersion>(`/models/${encodeURIComponent(id)}/versions/1`);
  }
  return request<ModelVersion>(`/models/${encodeURIComponent(found.id)}/versions`, { method: "POST", json: first });
}

/** Submits the job that exports a checkpoint, on resources like those of the training, and registers it. */
export function registerCheckpoint(job: Job, checkpoint: Checkpoint, { model, alias }: Registration): Promise<Job> {
  const resources = Object.entries((job.resolved_spec.resources ?? {}) as JsonObject);
  const spec = {
    version: 1,
    name: `export-${job.name}`.slice(0, 100),
    team: job.team.name,
    ...(job.project ? { project: job.project } : {}),
    resources: Object.fromEntries(resources.filter(([name, value]) => TAKEN.includes(name) && value != null)),
    export: { job: job.id, step: checkpoint.step },
    output: { register: model, ...(alias ? { alias } : {}) },
  };
  return submitJob(spec, uniqueKey());
}
