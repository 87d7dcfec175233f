"""What the API answers and takes, made from frontend/openapi.json by `make gen`."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypeAlias, TypedDict


class AcceptRequest(TypedDict):
    token: str
    username: NotRequired[str]
    password: NotRequired[str]


ActivationCheckpointingEnum: TypeAlias = Literal['none', 'selective', 'full']


ArtifactKindEnum: TypeAlias = Literal['model', 'log', 'profile']


class AttemptIdRequest(TypedDict):
    attempt_id: str


AttemptStatusEnum: TypeAlias = Literal['prepared', 'submitted', 'running', 'ended']


class AuditEvent(TypedDict):
    seq: int
    time: str
    action: str
    actor: str
    actor_id: str
    token_id: str
    team_id: str
    target_type: str
    target_id: str
    address: str
    request_id: str
    before: Any
    after: Any
    previous: str
    digest: str


class AuditPage(TypedDict):
    items: list[AuditEvent]
    next_cursor: str | None


class BatchRamp(TypedDict):
    start_tokens_per_step: int
    steps: int


class BeforeAfter(TypedDict):
    before: float
    after: float


Id: TypeAlias = str


class BulkRequest(TypedDict):
    ids: list[Id]


class CheckpointPolicy(TypedDict):
    every_steps: NotRequired[int]
    keep_last: NotRequired[int]


CompressionSpecKindEnum: TypeAlias = Literal['none', 'powersgd', 'int8', 'fp8']


ContextAttentionEnum: TypeAlias = Literal['ring', 'ulysses']


class CredentialsRequest(TypedDict):
    username: str
    password: str


class Curve(TypedDict):
    steps: list[int]
    values: list[float]
    seconds: list[float]
    lowest: NotRequired[list[float]]
    highest: NotRequired[list[float]]


DecayShapeEnum: TypeAlias = Literal['linear', 'sqrt', 'cosine']


DesiredEnum: TypeAlias = Literal['run', 'pause', 'stop']


DrawEnum: TypeAlias = Literal['extremes', 'mean']


class Estimate(TypedDict):
    num_parameters: int
    memory_bytes_per_process: int
    pool_memory_bytes_per_process: int
    processes: int
    slots: int
    tokens_total: int
    cost_currency: str
    cost_at_time_limit: float


Prompt: TypeAlias = str


class EvaluationSpec(TypedDict):
    every_steps: NotRequired[int]
    sequences: NotRequired[int]
    prompts: NotRequired[list[Prompt]]
    sample_tokens: NotRequired[int]


class Event(TypedDict):
    seq: int
    type: str
    time: str
    actor: str
    message: str
    data: Any
    request_id: str
    job_id: str
    team_seq: int | None


class EventPage(TypedDict):
    items: list[Event]
    next_after: int


ExportEnum: TypeAlias = Literal['merged', 'adapter']


class FieldProblem(TypedDict):
    pointer: str
    code: str
    detail: str


class Forgotten(TypedDict):
    forgotten: int


class ForkRequest(TypedDict):
    changes: NotRequired[Any]


FormatEnum: TypeAlias = Literal['auto', 'text', 'jsonl', 'parquet', 'chat']


GradientReductionEnum: TypeAlias = Literal['fp32', 'bf16']


HealthEnum: TypeAlias = Literal['ok', 'degraded', 'unknown', 'hung', 'straggling']


AfterItem: TypeAlias = str


Secret: TypeAlias = str


JobStatusEnum: TypeAlias = Literal['queued', 'admitted', 'dispatching', 'starting', 'running', 'pausing', 'paused', 'stopping', 'succeeded', 'failed', 'cancelled', 'expired']


class Links(TypedDict):
    self: str
    events: str
    metrics: str
    logs: str
    checkpoints: str
    artifacts: str


class LogLine(TypedDict):
    cursor: int
    time: str
    attempt: int
    rank: int
    stream: str
    text: str


class LogPage(TypedDict):
    items: list[LogLine]
    next_after: int


class LostAttempt(TypedDict):
    attempt_id: str
    job_id: str
    cluster: str
    backend_name: str
    status: str
    absent_count: int
    absent_since: str | None


class LostObject(TypedDict):
    cluster_id: str
    cluster: str
    backend_name: str
    attempt_id: str
    job_id: str
    why: str


class MixturePart(TypedDict):
    source: str
    weight: NotRequired[float]
    format: NotRequired[FormatEnum]
    text_field: NotRequired[str]
    validation_fraction: NotRequired[float]


class MlflowSpec(TypedDict):
    tracking_uri: str
    experiment: NotRequired[str]
    run_name: NotRequired[str | None]


class Named(TypedDict):
    id: str
    name: str


class NewProjectRequest(TypedDict):
    name: str
    team: NotRequired[str]
    description: NotRequired[str]


class NewSecretRequest(TypedDict):
    name: str
    value: str


Type: TypeAlias = str


class NewWebhookRequest(TypedDict):
    url: str
    name: NotRequired[str]
    types: NotRequired[list[Type]]
    team: NotRequired[str]


class Object(TypedDict):
    cluster_id: str
    backend_name: str


class ObjectRequest(TypedDict):
    cluster_id: str
    backend_name: str


OnCorruptEnum: TypeAlias = Literal['fail', 'skip']


OptimizerSpecNameEnum: TypeAlias = Literal['adamw', 'muon']


PackingEnum: TypeAlias = Literal['none', 'documents']


class ParameterGroup(TypedDict):
    pattern: str
    learning_rate_factor: NotRequired[float]
    weight_decay_factor: NotRequired[float | None]


class Part(TypedDict):
    key: str
    url: str
    size: int
    sha256: str
    plaintext_size: int


class PatchedLimitsRequest(TypedDict):
    max_running_jobs: NotRequired[int | None]
    max_slots: NotRequired[int | None]


class PatchedProjectChangeRequest(TypedDict):
    description: NotRequired[str]
    archived: NotRequired[bool]


class PatchedWebhookChangesRequest(TypedDict):
    url: NotRequired[str]
    name: NotRequired[str]
    types: NotRequired[list[Type]]
    enabled: NotRequired[bool]


PipelineScheduleEnum: TypeAlias = Literal['gpipe', '1f1b', 'interleaved_1f1b', 'interleaved_zero_bubble', 'zbv_zero_bubble', 'dualpipe_v', 'looped_bfs']


class Plan(TypedDict):
    resolved_spec: Any
    warnings: list[FieldProblem]
    estimate: Estimate


PlatformRoleEnum: TypeAlias = Literal['none', 'auditor', 'platform_admin']


class Pool(TypedDict):
    name: str
    accelerator: str
    nodes: int
    slots_per_node: int
    slots: int
    memory_bytes: int
    price_per_slot_hour: float
    currency: str


PrecisionEnum: TypeAlias = Literal['fp32', 'bf16', 'fp8']


PresenceEnum: TypeAlias = Literal['present', 'finished', 'absent', 'unknown']


class Preset(TypedDict):
    name: str
    title: str
    description: str
    num_parameters: int
    fits: dict[str, bool]
    spec: Any
    spec_yaml: str


class PresetPage(TypedDict):
    items: list[Preset]
    next_cursor: str | None


PriorityEnum: TypeAlias = Literal['low', 'normal', 'high']


class Problem(TypedDict):
    type: str
    title: str
    status: int
    code: str
    detail: str
    remedy: NotRequired[str]
    request_id: str
    errors: NotRequired[list[FieldProblem]]


class ProfileRequestRequest(TypedDict):
    steps: NotRequired[int]


ProfileStatusEnum: TypeAlias = Literal['requested', 'ready', 'failed']


class Progress(TypedDict):
    step: int
    steps_total: int
    tokens_seen: int
    loss: float | None
    validation_loss: float | None
    tokens_per_second: float | None
    mfu: float | None
    eta_seconds: float | None
    phase: str
    updated_at: str


class Project(TypedDict):
    id: str
    team: Named
    name: str
    description: str
    created_by: NotRequired[str | None]
    created_at: str
    archived_at: str | None
    job_count: int
    live_job_count: int
    last_submitted_at: str | None


class ProjectPage(TypedDict):
    items: list[Project]
    next_cursor: str | None


Job1: TypeAlias = str


Series1: TypeAlias = str


class Reason(TypedDict):
    code: str
    message: str
    remedy: str
    blame: str


class Resources(TypedDict):
    nodes: NotRequired[int]
    processes_per_node: NotRequired[int]
    cluster: NotRequired[str | None]
    accelerator: NotRequired[str]


class RetryPolicy(TypedDict):
    max_charged: NotRequired[int]
    max_free: NotRequired[int]
    window_seconds: NotRequired[int]
    restarts_in_place: NotRequired[int]


RoleEnum: TypeAlias = Literal['viewer', 'member', 'admin']


class RopeScaling(TypedDict):
    factor: float
    low_frequency_factor: NotRequired[float]
    high_frequency_factor: NotRequired[float]
    original_length: int


ScaleEnum: TypeAlias = Literal['rms', 'spectral']


ScheduleSpecNameEnum: TypeAlias = Literal['wsd', 'cosine', 'constant']


ScopesEnum: TypeAlias = Literal['read', 'submit', 'artifacts', 'admin', 'platform']


ScoringEnum: TypeAlias = Literal['softmax', 'sigmoid']


class Secret1(TypedDict):
    id: str
    name: str
    updated_by: NotRequired[str | None]
    created_at: str
    updated_at: str


class SecretPage(TypedDict):
    items: list[Secret1]
    next_cursor: str | None


class Seen(TypedDict):
    attempt_id: str
    presence: PresenceEnum


class Series(TypedDict):
    steps: list[int]
    values: list[float]
    times: list[str]


class ServiceAccount(TypedDict):
    id: str
    username: str
    created_at: str


class ServiceAccountPage(TypedDict):
    items: list[ServiceAccount]
    next_cursor: str | None


class SignOn(TypedDict):
    name: str
    url: str


StateEnum: TypeAlias = Literal['pending', 'delivered', 'failed']


class StoredFile(TypedDict):
    path: str
    size: int


class Sweeper(TypedDict):
    name: str
    invariant: str
    every_seconds: float
    rows_due: int
    oldest_due_seconds: float | None
    ran_at: str | None
    took_seconds: float | None
    failed_at: str | None
    error: str
    late: bool


class SweeperPage(TypedDict):
    items: list[Sweeper]
    next_cursor: str | None


TargetsEnum: TypeAlias = Literal['query', 'key', 'value', 'output', 'gate', 'up', 'down']


class Team(TypedDict):
    max_running_jobs: NotRequired[int | None]
    max_slots: NotRequired[int | None]
    id: str
    name: str
    created_at: str


class TeamEventPage(TypedDict):
    items: list[Event]
    next_after: str


class TeamPage(TypedDict):
    items: list[Team]
    next_cursor: str | None


class TeamRequest(TypedDict):
    max_running_jobs: NotRequired[int | None]
    max_slots: NotRequired[int | None]
    name: str


class TeamRole(TypedDict):
    id: str
    name: str
    role: str


class TelemetrySpec(TypedDict):
    mlflow: NotRequired[MlflowSpec | None]


class Timings(TypedDict):
    queued_seconds: float
    startup: dict[str, float]
    training_seconds: float | None
    evaluation_seconds: float | None
    checkpoint_seconds: float | None
    export_seconds: float | None


class Token(TypedDict):
    id: str
    name: str
    prefix: str
    team: str
    scopes: list[ScopesEnum]
    created_at: str
    expires_at: str | None
    last_used_at: str | None
    revoked_at: str | None


class TokenPage(TypedDict):
    items: list[Token]
    next_cursor: str | None


class TokenRequestRequest(TypedDict):
    name: str
    expires_in_days: NotRequired[int | None]
    scopes: NotRequired[list[ScopesEnum]]
    team: NotRequired[str]


class TokenRotationRequest(TypedDict):
    overlap_seconds: NotRequired[int]


TokenizerSpecKindEnum: TypeAlias = Literal['bpe', 'model']


class Try(TypedDict):
    at: str
    status: int | None
    seconds: float
    error: str
    answer: str


class Unlisted(TypedDict):
    cluster: str
    why: str


class User(TypedDict):
    id: str
    username: str
    email: str
    is_staff: bool
    platform_role: PlatformRoleEnum


class WebhookSecret(TypedDict):
    id: str
    created_at: str
    retires_at: str | None


class WebhookSecretRotationRequest(TypedDict):
    overlap_seconds: NotRequired[int]


class Artifact(TypedDict):
    id: str
    job: str
    attempt: str
    step: int
    size_bytes: int
    files: list[StoredFile]
    metrics: dict[str, float]
    created_at: str
    kind: ArtifactKindEnum
    name: str


class ArtifactPage(TypedDict):
    items: list[Artifact]
    next_cursor: str | None


class Attempt(TypedDict):
    id: str
    number: int
    status: AttemptStatusEnum
    reason: Reason | None
    cluster: str
    native_state: str
    native_reason: str
    exit_status: int | None
    started_at: str | None
    finished_at: str | None
    last_step: int | None


class Checkpoint(TypedDict):
    id: str
    job: str
    attempt: str
    step: int
    size_bytes: int
    files: list[StoredFile]
    metrics: dict[str, float]
    created_at: str
    world_size: int
    generation: int


class CheckpointPage(TypedDict):
    items: list[Checkpoint]
    next_cursor: str | None


class Cluster(TypedDict):
    id: str
    name: str
    kind: str
    pools: list[Pool]


class ClusterPage(TypedDict):
    items: list[Cluster]
    next_cursor: str | None


class CompressionSpec(TypedDict):
    kind: NotRequired[CompressionSpecKindEnum]
    rank: NotRequired[int]
    start_step: NotRequired[int]


class DataSpec(TypedDict):
    source: NotRequired[str | None]
    format: NotRequired[FormatEnum]
    text_field: NotRequired[str]
    validation_fraction: NotRequired[float]
    mixture: NotRequired[list[MixturePart]]
    packing: NotRequired[PackingEnum]
    on_corrupt: NotRequired[OnCorruptEnum]
    shuffle_shards: NotRequired[int]
    cache_bytes: NotRequired[int]


class Dataset(TypedDict):
    id: str
    team: Named
    name: str
    origin: str
    format: str
    size_bytes: int
    documents: int | None
    created_at: str


class DatasetPage(TypedDict):
    items: list[Dataset]
    next_cursor: str | None


class Delivery(TypedDict):
    id: str
    webhook_id: str
    event_type: str
    state: StateEnum
    tries: int
    next_try_at: str | None
    gives_up_at: str
    created_at: str
    finished_at: str | None
    log: list[Try]


class DeliveryPage(TypedDict):
    items: list[Delivery]
    next_cursor: str | None


class DownloadFile(TypedDict):
    path: str
    size: int
    parts: list[Part]


class FullDelivery(TypedDict):
    id: str
    webhook_id: str
    event_type: str
    state: StateEnum
    tries: int
    next_try_at: str | None
    gives_up_at: str
    created_at: str
    finished_at: str | None
    log: list[Try]
    body: str


class Invitation(TypedDict):
    id: str
    role: RoleEnum
    note: str
    created_by: str
    created_at: str
    expires_at: str
    accepted_by: NotRequired[str | None]
    accepted_at: str | None
    revoked_at: str | None


class InvitationPage(TypedDict):
    items: list[Invitation]
    next_cursor: str | None


class Job(TypedDict):
    id: str
    name: str
    team: Named
    project: str
    labels: dict[str, str]
    priority: str
    status: JobStatusEnum
    desired: DesiredEnum
    reason: Reason | None
    health: HealthEnum
    cluster: str
    created_at: str
    started_at: str | None
    finished_at: str | None
    updated_at: str
    created_by: str
    forked_from: str | None
    attempt_count: int
    progress: Progress | None
    validation_loss: BeforeAfter | None
    warnings: list[FieldProblem]
    links: Links
    attempts: list[Attempt]
    timings: Timings
    spec: Any
    resolved_spec: Any
    submission: str | None


class JobCurves(TypedDict):
    id: str
    name: str
    status: JobStatusEnum
    origin: str
    series: dict[str, Curve]


class JobFiltersRequest(TypedDict):
    status: NotRequired[list[JobStatusEnum]]
    team: NotRequired[str]
    project: NotRequired[str]
    q: NotRequired[str]
    labels: NotRequired[dict[str, str]]
    created_after: NotRequired[str]


class JobSummary(TypedDict):
    id: str
    name: str
    team: Named
    project: str
    labels: dict[str, str]
    priority: str
    status: JobStatusEnum
    desired: DesiredEnum
    reason: Reason | None
    health: HealthEnum
    cluster: str
    created_at: str
    started_at: str | None
    finished_at: str | None
    updated_at: str
    created_by: str
    forked_from: str | None
    attempt_count: int
    progress: Progress | None
    validation_loss: BeforeAfter | None
    warnings: list[FieldProblem]
    links: Links


class LoraSpec(TypedDict):
    rank: NotRequired[int]
    alpha: NotRequired[float]
    targets: NotRequired[list[TargetsEnum]]
    export: NotRequired[ExportEnum]


class MadeInvitation(TypedDict):
    id: str
    role: RoleEnum
    note: str
    created_by: str
    created_at: str
    expires_at: str
    accepted_by: NotRequired[str | None]
    accepted_at: str | None
    revoked_at: str | None
    token: str
    url: str


class MadeWebhook(TypedDict):
    id: str
    team: str
    name: str
    url: str
    types: list[str]
    enabled: bool
    disabled_reason: str
    disabled_at: str | None
    consecutive_failures: int
    failing_since: str | None
    last_success_at: str | None
    last_failure_at: str | None
    secrets: list[WebhookSecret]
    created_by: NotRequired[str | None]
    created_at: str
    secret: str


class Member(TypedDict):
    user_id: str
    username: str
    email: str
    role: RoleEnum


class MemberPage(TypedDict):
    items: list[Member]
    next_cursor: str | None


class Metrics(TypedDict):
    series: dict[str, Series]
    last_step: int
    names: list[str]


class MetricsAnswer(TypedDict):
    items: list[JobCurves]
    points: int


class MoEShape(TypedDict):
    num_experts: int
    experts_per_token: int
    expert_size: int
    shared_experts: NotRequired[int]
    first_dense_layers: NotRequired[int]
    scoring: NotRequired[ScoringEnum]
    normalise_weights: NotRequired[bool]
    weight_scale: NotRequired[float]
    balance_rate: NotRequired[float]


class ModelShape(TypedDict):
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    intermediate_size: int
    head_dim: NotRequired[int | None]
    rope_theta: NotRequired[float]
    rope_scaling: NotRequired[RopeScaling | None]
    norm_epsilon: NotRequired[float]
    tie_embeddings: NotRequired[bool]
    qk_norm: NotRequired[bool]
    moe: NotRequired[MoEShape | None]


class ModelSpec(TypedDict):
    preset: NotRequired[Literal['llama-1m', 'llama-10m', 'llama-100m', 'llama-1b', 'llama-8b', 'llama-70b', 'llama-405b', 'moe-1m'] | None]
    shape: NotRequired[ModelShape | None]
    base: NotRequired[str | None]


class MuonSpec(TypedDict):
    learning_rate: NotRequired[float | None]
    momentum: NotRequired[float]
    nesterov: NotRequired[bool]
    iterations: NotRequired[int]
    scale: NotRequired[ScaleEnum]


class NewInvitationRequest(TypedDict):
    role: RoleEnum
    note: NotRequired[str]
    expires_in_hours: NotRequired[int]


class NewMemberRequest(TypedDict):
    role: RoleEnum
    username: str


class NewServiceAccountRequest(TypedDict):
    role: RoleEnum
    name: str


class NewToken(TypedDict):
    id: str
    name: str
    prefix: str
    team: str
    scopes: list[ScopesEnum]
    created_at: str
    expires_at: str | None
    last_used_at: str | None
    revoked_at: str | None
    token: str


class OptimizerSpec(TypedDict):
    name: NotRequired[OptimizerSpecNameEnum]
    learning_rate: NotRequired[float]
    beta1: NotRequired[float]
    beta2: NotRequired[float]
    epsilon: NotRequired[float]
    weight_decay: NotRequired[float]
    gradient_clip: NotRequired[float | None]
    offload: NotRequired[bool]
    muon: NotRequired[MuonSpec]
    groups: NotRequired[list[ParameterGroup]]


class Orphans(TypedDict):
    objects: list[LostObject]
    attempts: list[LostAttempt]
    unlisted: list[Unlisted]


class ParallelismSpec(TypedDict):
    data: NotRequired[int | Literal['auto']]
    replicate: NotRequired[int | Literal['auto']]
    zero: NotRequired[int | Literal['auto']]
    tensor: NotRequired[int]
    tensor_overlap: NotRequired[bool]
    context: NotRequired[int]
    context_attention: NotRequired[ContextAttentionEnum]
    pipeline: NotRequired[int]
    pipeline_schedule: NotRequired[PipelineScheduleEnum]
    stages_per_rank: NotRequired[int | Literal['auto']]
    stage_layers: NotRequired[list[int] | None]
    expert: NotRequired[int]
    compression: NotRequired[CompressionSpec]
    micro_batch_sequences: NotRequired[int | Literal['auto']]


class PatchedRoleRequest(TypedDict):
    role: NotRequired[RoleEnum]


class Profile(TypedDict):
    id: str
    job: str
    attempt: str
    number: int
    status: ProfileStatusEnum
    reason: str
    steps: int
    first_step: int | None
    last_step: int | None
    artifact: str | None
    size_bytes: int | None
    requested_by: str
    created_at: str
    finished_at: str | None


class ProfilePage(TypedDict):
    items: list[Profile]
    next_cursor: str | None


class QueryRequest(TypedDict):
    jobs: NotRequired[list[Job1]]
    filters: NotRequired[JobFiltersRequest]
    limit: NotRequired[int]
    series: list[Series1]
    points: NotRequired[int]
    from_step: NotRequired[int]
    to_step: NotRequired[int]
    attempt: NotRequired[int]
    draw: NotRequired[DrawEnum]


class ScheduleSpec(TypedDict):
    name: NotRequired[ScheduleSpecNameEnum]
    warmup_steps: NotRequired[int]
    decay_fraction: NotRequired[float]
    decay_shape: NotRequired[DecayShapeEnum]
    final_fraction: NotRequired[float]


class ScopedRequest(TypedDict):
    name: str
    expires_in_days: NotRequired[int | None]
    scopes: NotRequired[list[ScopesEnum]]


class Session(TypedDict):
    authenticated: bool
    user: User | None
    teams: list[TeamRole]
    csrf_token: str
    sign_on: SignOn | None


class TokenizerSpec(TypedDict):
    kind: NotRequired[TokenizerSpecKindEnum]
    vocab_size: NotRequired[int]
    trained_on: NotRequired[str | None]
    digest: NotRequired[str]


class TrainingSpec(TypedDict):
    model: ModelSpec
    data: DataSpec
    tokenizer: NotRequired[TokenizerSpec]
    steps: int
    tokens_per_step: int
    sequence_length: int
    optimizer: NotRequired[OptimizerSpec]
    schedule: NotRequired[ScheduleSpec]
    lora: NotRequired[LoraSpec | None]
    batch_ramp: NotRequired[BatchRamp | None]
    z_loss: NotRequired[float]
    precision: NotRequired[PrecisionEnum]
    gradient_reduction: NotRequired[GradientReductionEnum]
    activation_checkpointing: NotRequired[ActivationCheckpointingEnum]
    recompute_layers: NotRequired[int | None]
    parallelism: NotRequired[ParallelismSpec]
    evaluation: NotRequired[EvaluationSpec]
    compile: NotRequired[bool]
    cuda_graphs: NotRequired[bool]
    seed: NotRequired[int]


class Webhook(TypedDict):
    id: str
    team: str
    name: str
    url: str
    types: list[str]
    enabled: bool
    disabled_reason: str
    disabled_at: str | None
    consecutive_failures: int
    failing_since: str | None
    last_success_at: str | None
    last_failure_at: str | None
    secrets: list[WebhookSecret]
    created_by: NotRequired[str | None]
    created_at: str


class WebhookPage(TypedDict):
    items: list[Webhook]
    next_cursor: str | None


class ArtifactDownload(TypedDict):
    files: list[DownloadFile]
    data_key: str
    expires_at: str
    artifact: Artifact


class BulkItem(TypedDict):
    id: str
    status: int
    job: JobSummary | None
    problem: Problem | None


class BulkResult(TypedDict):
    items: list[BulkItem]


class CheckpointDownload(TypedDict):
    files: list[DownloadFile]
    data_key: str
    expires_at: str
    checkpoint: Checkpoint


class JobPage(TypedDict):
    items: list[JobSummary]
    next_cursor: str | None


class PrepareSpec(TypedDict):
    data: DataSpec
    tokenizer: NotRequired[TokenizerSpec]


class JobSpecRequest(TypedDict):
    version: NotRequired[Literal[1]]
    name: str
    team: NotRequired[str | None]
    project: NotRequired[str]
    labels: NotRequired[dict[str, str]]
    priority: NotRequired[PriorityEnum]
    resources: NotRequired[Resources]
    after: NotRequired[list[AfterItem]]
    secrets: NotRequired[list[Secret]]
    time_limit_seconds: NotRequired[int]
    wait_limit_seconds: NotRequired[int | None]
    retry: NotRequired[RetryPolicy]
    checkpoint: NotRequired[CheckpointPolicy]
    telemetry: NotRequired[TelemetrySpec]
    training: NotRequired[TrainingSpec | None]
    prepare: NotRequired[PrepareSpec | None]
