/** The shapes of /api/v1 as the dashboard names them. */

export type JobStatus =
  | "queued"
  | "admitted"
  | "dispatching"
  | "starting"
  | "running"
  | "pausing"
  | "paused"
  | "stopping"
  | "succeeded"
  | "failed"
  | "cancelled"
  | "expired";

export interface User {
  id: string;
  username: string;
  email: string;
  is_staff: boolean;
}

export interface TeamRef {
  id: string;
  name: string;
}

export interface Team extends TeamRef {
  role: string;
}

export interface Session {
  authenticated: boolean;
  user: User | null;
  teams: Team[];
  csrf_token: string;
}

export interface Page<T> {
  items: T[];
  next_cursor: string | null;
}

export interface FieldProblem {
  pointer: string;
  code: string;
  detail: string;
}

export interface Reason {
  code: string;
  message: string;
  remedy: string | null;
}

export interface Attempt {
  id: string;
  number: number;
  status: string;
  reason: Reason | null;
  cluster: string;
  native_state: string | null;
  started_at: string | null;
  finished_at: string | null;
  last_step: number | null;
}

export interface Progress {
  step: number;
  steps_total: number;
  tokens_seen: number;
  loss: number | null;
  validation_loss: number | null;
  tokens_per_second: number | null;
  mfu: number | null;
  eta_seconds: number | null;
  phase: string;
  updated_at: string;
}

export interface Timings {
  queued_seconds: number | null;
  startup: Record<string, number>;
  training_seconds: number | null;
  checkpoint_seconds: number | null;
  export_seconds: number | null;
}

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };
export type JsonObject = Record<string, Json>;

export interface JobSummary {
  id: string;
  name: string;
  team: TeamRef;
  project: string;
  labels: Record<string, string>;
  priority: string;
  status: JobStatus;
  desired: string;
  reason: Reason | null;
  health: string;
  created_at: string;
  started_at: string | null;
  finished_at: string | null;
  updated_at: string;
  created_by: string | null;
  attempt_count: number;
  progress: Progress | null;
  validation_loss: { before: number | null; after: number | null } | null;
}

export interface Job extends JobSummary {
  attempts: Attempt[];
  warnings: FieldProblem[];
  timings: Timings;
  spec: JsonObject;
  resolved_spec: JsonObject;
  submission: string | null;
}

export interface Plan {
  resolved_spec: JsonObject;
  warnings: FieldProblem[];
  estimate: {
    num_parameters: number;
    memory_bytes_per_process: number;
    pool_memory_bytes_per_process: number | null;
    processes: number;
    slots: number | null;
    tokens_total: number;
    cost_currency: string | null;
    cost_at_time_limit: number | null;
  };
}

export interface JobEvent {
  seq: number;
  type: string;
  time: string;
  actor: string | null;
  data: JsonObject;
  message: string;
}

export interface Series {
  steps: number[];
  values: (number | null)[];
  times: string[];
}

export interface Metrics {
  series: Record<string, Series>;
  last_step: number | null;
  names: string[];
}

export interface LogLine {
  cursor: string;
  time: string;
  attempt: number | string | null;
  rank: number;
  stream: string;
  text: string;
}

export interface Window<T> {
  items: T[];
  next_after: string | number | null;
}

export interface Checkpoint {
  id: string;
  attempt: number | string | null;
  step: number;
  size_bytes: number;
  world_size: number;
  metrics: Record<string, number>;
  created_at: string;
}

export interface Artifact {
  id: string;
  kind: string;
  name: string;
  step: number | null;
  size_bytes: number;
  files: { path: string; size: number }[];
  metrics: Record<string, number>;
  created_at: string;
}

export interface ApiToken {
  id: string;
  name: string;
  prefix: string;
  team: TeamRef | string | null;
  created_at: string;
  expires_at: string | null;
  last_used_at: string | null;
  revoked_at: string | null;
}

export interface Preset {
  name: string;
  title: string;
  description: string;
  spec: JsonObject;
  spec_yaml: string;
  fits: Record<string, boolean>;
  num_parameters: number;
}

export interface Dataset {
  id: string;
  team: TeamRef | string | null;
  name: string;
  status: string;
  size_bytes: number | null;
  documents: number | null;
  format: string;
  created_at: string;
}
