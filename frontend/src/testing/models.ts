import type { ModelVersion, RegisteredModel } from "@/api/types";

const TIME = "2026-01-02T03:04:05Z";

/** A model of the team red with two versions, of which the first is in production. */
export function registeredModel(part: Partial<RegisteredModel> = {}): RegisteredModel {
  return {
    id: "mdl_1",
    team: { id: "team_1", name: "red" },
    name: "bot",
    card: "# Bot\n\n<b>Answers</b> questions.",
    tags: ["chat"],
    versions: 2,
    last_version: 2,
    aliases: [{ name: "production", version: 1, moved_by: "ada", moved_at: TIME }],
    created_by: "ada",
    is_shared: false,
    created_at: TIME,
    ...part,
  };
}

/** A version of that model, made by a job of its own. */
export function modelVersion(number: number, aliases: string[]): ModelVersion {
  return {
    number,
    model: { id: "mdl_1", name: "bot" },
    job: { id: `job_${number}`, name: `train-${number}` },
    not_trainable: "",
    attempt: 1,
    step: 100,
    artifact: `art_${number}`,
    size_bytes: 4096,
    metrics: {},
    digest: "ab".repeat(32),
    aliases,
    evaluations: [],
    created_by: "ada",
    created_at: TIME,
  };
}
