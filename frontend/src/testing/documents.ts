import type {
  Budget,
  DeletionPreview,
  FullCluster,
  Invitation,
  Job,
  JobEvent,
  JobSummary,
  Page,
  Plan,
  Preset,
  QuotaNode,
  QuotaPreview,
  Quotas,
  SecondFactors,
  Session,
  Timings,
  Wait,
  Webhook,
} from "@/api/types";

// Documents of the API with plain values; a test names only the fields that it is about.

const TIME = "2026-03-01T10:00:00Z";

export function page<T>(...items: T[]): Page<T> {
  return { items, next_cursor: null };
}

export function session(part: Partial<Session> = {}): Session {
  return {
    authenticated: true,
    user: { id: "usr_1", username: "ada", email: "ada@example.org", is_staff: false, platform_role: "none" },
    teams: [{ id: "team_1", name: "red", role: "admin" }],
    csrf_token: "csrf",
    sign_on: null,
    second_factor: null,
    second_factor_setup_required: false,
    ...part,
  };
}

export function jobSummary(part: Partial<JobSummary> = {}): JobSummary {
  const id = part.id ?? "job_1";
  return {
    id,
    name: "tiny",
    team: { id: "team_1", name: "red" },
    project: "default",
    labels: {},
    priority: "normal",
    status: "running",
    desired: "run",
    reason: null,
    health: "ok",
    cluster: "local",
    created_at: TIME,
    started_at: TIME,
    finished_at: null,
    updated_at: TIME,
    created_by: "ada",
    forked_from: null,
    attempt_count: 1,
    ran_seconds: 0,
    running_since: TIME,
    progress: null,
    validation_loss: null,
    warnings: [],
    links: { self: "", events: "", metrics: "", logs: "", checkpoints: "", artifacts: "" },
    ...part,
  };
}

export function job(part: Partial<Job> = {}): Job {
  return {
    ...jobSummary(),
    attempts: [],
    preemptions: 0,
    timings: timings(),
    spec: { version: 1, name: "tiny" },
    resolved_spec: { version: 1, name: "tiny" },
    submission: null,
    wait: null,
    ...part,
  };
}

/** The total is the sum of the parts. */
export function timings(part: Partial<Omit<Timings, "total_seconds">> = {}): Timings {
  const { startup = {}, ...seconds } = part;
  return {
    total_seconds: Object.values(seconds).reduce((sum, each) => sum + each, 0),
    queued_seconds: 0,
    startup_seconds: 0,
    startup,
    training_seconds: 0,
    preparing_seconds: 0,
    evaluation_seconds: 0,
    checkpoint_seconds: 0,
    export_seconds: 0,
    finishing_seconds: 0,
    paused_seconds: 0,
    stalled_seconds: 0,
    lost_seconds: 0,
    unattributed_seconds: 0,
    ...seconds,
  };
}

export function attempt(part: Partial<Job["attempts"][number]> = {}): Job["attempts"][number] {
  const number = part.number ?? 1;
  return {
    id: `att_${number}`,
    number,
    status: "running",
    reason: null,
    cluster: "iron",
    native_state: "",
    native_reason: "",
    phase: "",
    explanation: "",
    expected_start_at: null,
    nodes: [],
    exit_status: null,
    launched_at: null,
    started_at: TIME,
    finished_at: null,
    last_step: null,
    ...part,
  };
}

export function progress(step: number, steps: number): NonNullable<Job["progress"]> {
  return {
    step,
    steps_total: steps,
    tokens_seen: step * 256,
    loss: 2.5,
    validation_loss: null,
    tokens_per_second: 1200,
    mean_tokens_per_second: null,
    mean_mfu: null,
    mfu: null,
    eta_seconds: null,
    phase: "training",
    updated_at: TIME,
  };
}

export function wait(part: Partial<Wait> = {}): Wait {
  return {
    blocker: null,
    unblocks: "",
    position: null,
    of: null,
    starts_in_seconds: null,
    p50_seconds: null,
    p90_seconds: null,
    at: null,
    estimated_at: null,
    ...part,
  };
}

export function event(seq: number, part: Partial<JobEvent> = {}): JobEvent {
  return {
    seq,
    type: "job.submitted",
    time: TIME,
    actor: "ada",
    message: "",
    data: {},
    request_id: "",
    job_id: "job_1",
    team_seq: null,
    ...part,
  };
}

const SOON: Plan["start"] = {
  starts_now: true,
  reason: null,
  unblocks: "",
  blocker: null,
  position: 1,
  starts_in_seconds: 0,
  p50_seconds: 0,
  p90_seconds: 0,
};

export function start(part: Partial<Plan["start"]> = {}): Plan["start"] {
  return { ...SOON, ...part };
}

export function plan(part: Partial<Plan> = {}): Plan {
  return {
    start: SOON,
    cost: { amount: 1.5, currency: "USD" },
    expected: null,
    budgets: [],
    alternatives: [],
    resolved_spec: { version: 1, training: { steps: 100, sequence_length: 512 } },
    warnings: [],
    estimate: {
      num_parameters: 10_000_000,
      memory_bytes_per_process: 2 ** 30,
      pool_memory_bytes_per_process: 2 ** 34,
      host_bytes_per_process: 2 ** 30,
      processes: 2,
      slots: 2,
      tokens_total: 25_600,
      cost_currency: "USD",
      cost_at_time_limit: 1.5,
    },
    ...part,
  };
}

export function preset(name: string, part: Partial<Preset> = {}): Preset {
  return {
    name,
    title: `The preset ${name}`,
    description: "",
    num_parameters: 10_000_000,
    fits: { local: true },
    spec: {},
    spec_yaml: `version: 1\nname: ${name}\ntraining:\n  steps: 40 # few\n`,
    ...part,
  };
}

export function quotaNode(id: string, part: Partial<QuotaNode> = {}): QuotaNode {
  return {
    id,
    kind: "group",
    name: id,
    path: id,
    parent: "org",
    depth: 1,
    team: null,
    weight: 1,
    max_running_jobs: null,
    max_queued_jobs: null,
    max_slots: null,
    max_slots_per_job: null,
    max_run_seconds: null,
    max_storage_bytes: null,
    idle_warning_seconds: null,
    idle_pause_seconds: null,
    grants: [],
    shares: [],
    running_jobs: 0,
    queued_jobs: 0,
    slots_used: 0,
    ...part,
  };
}

export function quotas(...nodes: QuotaNode[]): Quotas {
  const top = quotaNode("org", { kind: "organisation", parent: null, depth: 0 });
  return { version: 7, whole: true, may_change: true, nodes: [top, ...nodes] };
}

export function quotaPreview(part: Partial<QuotaPreview> = {}): QuotaPreview {
  return { version: 7, differences: [], over: [], preempted: [], started: [], not_started: [], notes: [], ...part };
}

export function budget(part: Partial<Budget> = {}): Budget {
  return {
    id: "bud_1",
    node: { id: "red", name: "red" },
    path: "org/red",
    name: "spring",
    unit: "slot_hours",
    currency: "",
    accelerator: "",
    period: "month",
    amount: 36_000,
    soft_percent: 80,
    hard: false,
    active: true,
    created_at: TIME,
    current: null,
    forecast: null,
    ...part,
  };
}

export function invitation(part: Partial<Invitation> = {}): Invitation {
  return {
    id: "inv_1",
    role: "member",
    note: "",
    created_by: "ada",
    created_at: TIME,
    expires_at: "2999-01-01T00:00:00Z",
    accepted_at: null,
    revoked_at: null,
    declined_at: null,
    username: "",
    ...part,
  };
}

export function webhook(part: Partial<Webhook> = {}): Webhook {
  return {
    id: "whk_1",
    team: "red",
    name: "ci",
    url: "https://ci.example.org/hook",
    types: [],
    format: "cloudevents",
    enabled: true,
    disabled_reason: "",
    disabled_at: null,
    consecutive_failures: 0,
    failing_since: null,
    last_success_at: null,
    last_failure_at: null,
    secrets: [],
    created_at: TIME,
    ...part,
  };
}

export function secondFactors(part: Partial<SecondFactors> = {}): SecondFactors {
  return {
    has_password: true,
    authenticator_app_since: null,
    recovery_codes_left: null,
    passkeys: [],
    passkeys_available: true,
    ...part,
  };
}

export function cluster(part: Partial<FullCluster> = {}): FullCluster {
  return {
    id: "cls_1",
    name: "iron",
    kind: "slurm",
    enabled: true,
    usable: null,
    pools: [],
    nodes: { total: 0, ready: 0, drained: 0, down: 0, unknown: 0, quarantined: 0 },
    capacity: [],
    created_at: TIME,
    observed_at: null,
    setup: null,
    ...part,
  };
}

export function deletionPreview(part: Partial<DeletionPreview> = {}): DeletionPreview {
  return {
    kind: "dataset",
    target: "dat_1",
    name: "books",
    size_bytes: 2048,
    artifacts: 0,
    checkpoints: 0,
    preparations: 0,
    blocked_by: [],
    registered: [],
    aliases: [],
    used_by: [],
    undo_days: 7,
    contents: {},
    ...part,
  };
}
