"""What the command line reads of the API, made from platform/athanor/api/openapi.json by `make gen`."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypeAlias, TypedDict

AfterItem: TypeAlias = str


Secret: TypeAlias = str


class BeforeAfter(TypedDict):
    before: float
    after: float


class BudgetEffect(TypedDict):
    name: str
    unit: str
    reserves: float
    available: float
    hard: bool


class CheckpointPolicy(TypedDict):
    every_steps: NotRequired[int]
    every_minutes: NotRequired[float | Literal['auto'] | None]
    shadow_every_steps: NotRequired[int | Literal['auto', 'none']]
    keep_last: NotRequired[int]
    keep_every_steps: NotRequired[int | None]
    keep_best: NotRequired[bool]


class CostAtTimeLimit(TypedDict):
    amount: float
    currency: str


DeletionKindEnum: TypeAlias = Literal['job', 'artifact', 'checkpoint', 'dataset', 'project', 'team']


DeletionStateEnum: TypeAlias = Literal['pending', 'purging', 'purged', 'restored']


DesiredEnum: TypeAlias = Literal['run', 'pause', 'stop']


class Estimate(TypedDict):
    num_parameters: int
    memory_bytes_per_process: int
    pool_memory_bytes_per_process: int | None
    host_bytes_per_process: int
    processes: int
    slots: int
    tokens_total: int
    cost_currency: str
    cost_at_time_limit: float


class ExpectedRun(TypedDict):
    p50_seconds: int
    p90_seconds: int
    p50_cost: float
    p90_cost: float
    like_jobs: int


class ExportSpec(TypedDict):
    job: str
    step: int
    checkpoint: NotRequired[str | None]


class FieldProblem(TypedDict):
    pointer: str
    code: str
    detail: str


HealthEnum: TypeAlias = Literal['ok', 'degraded', 'unknown', 'hung', 'straggling']


JobStatusEnum: TypeAlias = Literal['queued', 'admitted', 'dispatching', 'starting', 'running', 'pausing', 'paused', 'stopping', 'succeeded', 'failed', 'cancelled', 'expired']


class Links(TypedDict):
    self: str
    events: str
    metrics: str
    logs: str
    checkpoints: str
    artifacts: str


class Named(TypedDict):
    id: str
    name: str


class Preset(TypedDict):
    name: str
    title: str
    description: str
    num_parameters: int
    fits: dict[str, bool]
    spec: Any
    spec_yaml: str


PriorityEnum: TypeAlias = Literal['low', 'normal', 'high']


class Progress(TypedDict):
    step: int
    steps_total: int
    tokens_seen: int
    loss: float | None
    validation_loss: float | None
    tokens_per_second: float | None
    mean_tokens_per_second: float | None
    mfu: float | None
    mean_mfu: float | None
    eta_seconds: float | None
    phase: str
    updated_at: str


class Reason(TypedDict):
    code: str
    message: str
    remedy: str
    blame: str
    runbook: str


class Resources(TypedDict):
    nodes: NotRequired[int]
    processes_per_node: NotRequired[int]
    cluster: NotRequired[str | None]
    accelerator: NotRequired[str]
    spare_nodes: NotRequired[int]
    min_nodes: NotRequired[int | None]
    cpus_per_process: NotRequired[int | None]
    memory_bytes_per_node: NotRequired[int | str | None]
    exclusive: NotRequired[bool]
    max_switches: NotRequired[int | None]


class RetryPolicy(TypedDict):
    max_charged: NotRequired[int]
    max_free: NotRequired[int]
    window_seconds: NotRequired[int | str]
    restarts_in_place: NotRequired[int]
    hang_seconds: NotRequired[int | str | None]


class Schedule(TypedDict):
    not_before: NotRequired[str | None]
    deadline: NotRequired[str | None]
    max_price_per_slot_hour: NotRequired[float | None]
    max_grams_per_kwh: NotRequired[float | None]
    deferrable: NotRequired[bool]


class Timings(TypedDict):
    total_seconds: float
    queued_seconds: float
    startup_seconds: float
    startup: dict[str, float]
    training_seconds: float
    preparing_seconds: float
    evaluation_seconds: float
    checkpoint_seconds: float
    export_seconds: float
    finishing_seconds: float
    paused_seconds: float
    stalled_seconds: float
    lost_seconds: float
    unattributed_seconds: float


ActivationCheckpointingEnum: TypeAlias = Literal['none', 'selective', 'full']


ArtifactKindEnum: TypeAlias = Literal['model', 'log', 'profile']


AttemptStatusEnum: TypeAlias = Literal['prepared', 'submitted', 'running', 'ended']


class BatchRamp(TypedDict):
    start_tokens_per_step: int
    steps: int


CheckpointStateEnum: TypeAlias = Literal['intact', 'damaged', 'diverged']


class EmaSpec(TypedDict):
    decay: NotRequired[float]


EvaluationJobSpecPrecisionEnum: TypeAlias = Literal['auto', 'fp32', 'bf16']


Prompt: TypeAlias = str


class EvaluationSpec(TypedDict):
    every_steps: NotRequired[int]
    patience: NotRequired[int | None]
    sequences: NotRequired[int]
    prompts: NotRequired[list[Prompt]]
    sample_tokens: NotRequired[int]


StopItem: TypeAlias = str


GradientReductionEnum: TypeAlias = Literal['fp32', 'bf16']


class MlflowSpec(TypedDict):
    tracking_uri: str
    experiment: NotRequired[str]
    run_name: NotRequired[str | None]


class PinnedSegment(TypedDict):
    start: str | None
    end: str
    first_step: int
    last_step: int


ProfileStatusEnum: TypeAlias = Literal['requested', 'ready', 'failed']


EvaluationItem: TypeAlias = str


class ReportSpec(TypedDict):
    sequence_length: int
    base: NotRequired[str | None]
    evaluation: NotRequired[list[EvaluationItem]]


class RollbackSpec(TypedDict):
    max_rollbacks: NotRequired[int]
    loss_sigma: NotRequired[float | None]


class StoredFile(TypedDict):
    path: str
    size: int


SpecialToken: TypeAlias = str


TrainingSpecPrecisionEnum: TypeAlias = Literal['auto', 'fp32', 'bf16', 'fp8']


ContextAttentionEnum: TypeAlias = Literal['ring', 'ulysses']


DecayShapeEnum: TypeAlias = Literal['linear', 'sqrt', 'cosine']


DigitsEnum: TypeAlias = Literal['whole', 'single', 'triples']


EvaluationTaskFormatEnum: TypeAlias = Literal['auto', 'text', 'jsonl', 'parquet', 'chat']


EvaluationTaskKindEnum: TypeAlias = Literal['loss', 'multiple_choice', 'generation']


ExportEnum: TypeAlias = Literal['merged', 'adapter']


FormatEnum: TypeAlias = Literal['auto', 'text', 'jsonl', 'parquet', 'chat', 'preference', 'unpaired']


class GradientWatchSpec(TypedDict):
    absolute: NotRequired[float | None]
    relative: NotRequired[float | None]
    skip_sigma: NotRequired[float | None]
    layers_every_steps: NotRequired[int | None]
    logits_every_steps: NotRequired[int | None]


class Holder(TypedDict):
    team: str
    slots: int


LongDocumentsEnum: TypeAlias = Literal['cut', 'truncate', 'drop']


LossEnum: TypeAlias = Literal['dpo', 'orpo', 'kto']


class MixturePart(TypedDict):
    source: str
    weight: NotRequired[float]
    format: NotRequired[FormatEnum]
    text_field: NotRequired[str]
    validation_fraction: NotRequired[float]


OnCorruptEnum: TypeAlias = Literal['fail', 'skip']


OptimizerSpecNameEnum: TypeAlias = Literal['adamw', 'muon']


PackingEnum: TypeAlias = Literal['none', 'documents']


class ParameterGroup(TypedDict):
    pattern: str
    learning_rate_factor: NotRequired[float]
    weight_decay_factor: NotRequired[float | None]


PipelineScheduleEnum: TypeAlias = Literal['gpipe', '1f1b', 'interleaved_1f1b', 'interleaved_zero_bubble', 'zbv_zero_bubble', 'dualpipe_v', 'looped_bfs']


QuantizationEnum: TypeAlias = Literal['none', 'nf4']


ReferenceEnum: TypeAlias = Literal['live', 'precomputed']


ScheduleSpecNameEnum: TypeAlias = Literal['wsd', 'cosine', 'constant']


TargetsEnum: TypeAlias = Literal['query', 'key', 'value', 'output', 'gate', 'up', 'down']


TokenizerSpecKindEnum: TypeAlias = Literal['bpe', 'model']


WeightsEnum: TypeAlias = Literal['base', 'random']


ActivationEnum: TypeAlias = Literal['silu', 'gelu_tanh']


CompressionSpecKindEnum: TypeAlias = Literal['none', 'powersgd', 'int8', 'fp8']


class MLAShape(TypedDict):
    q_lora_rank: NotRequired[int | None]
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int


NormPositionEnum: TypeAlias = Literal['before', 'after', 'both']


ShortFactor: TypeAlias = float


LongFactor: TypeAlias = float


ScaleEnum: TypeAlias = Literal['rms', 'spectral']


class TemperatureTuning(TypedDict):
    floor_scale: NotRequired[int]
    attn_scale: NotRequired[float]


RopeScalingKindEnum: TypeAlias = Literal['llama3', 'linear', 'yarn', 'longrope']


ScoringEnum: TypeAlias = Literal['softmax', 'sigmoid']


class Deletion(TypedDict):
    id: str
    team: Named
    kind: DeletionKindEnum
    target: str
    name: str
    size_bytes: int
    state: DeletionStateEnum
    deleted_by: str
    created_at: str
    purge_after: str


class PresetPage(TypedDict):
    items: list[Preset]
    next_cursor: str | None


class Problem(TypedDict):
    type: str
    title: str
    status: int
    code: str
    detail: str
    remedy: NotRequired[str]
    request_id: str
    errors: NotRequired[list[FieldProblem]]


class Artifact(TypedDict):
    id: str
    job: str | None
    attempt: str | None
    step: int
    size_bytes: int
    files: list[StoredFile]
    authentic: bool
    metrics: dict[str, float]
    created_at: str
    team: Named
    kind: ArtifactKindEnum
    name: str


class Attempt(TypedDict):
    id: str
    number: int
    status: AttemptStatusEnum
    reason: Reason | None
    cluster: str
    native_state: str
    native_reason: str
    phase: str
    explanation: str
    expected_start_at: str | None
    nodes: list[str]
    exit_status: int | None
    launched_at: str | None
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
    authentic: bool
    metrics: dict[str, float]
    created_at: str
    world_size: int | None
    generation: int
    state: CheckpointStateEnum
    damage: str
    verified_at: str | None


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
    ran_seconds: float
    running_since: str | None
    progress: Progress | None
    validation_loss: BeforeAfter | None
    warnings: list[FieldProblem]
    links: Links


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


class ReplaySpec(TypedDict):
    job: str
    segments: NotRequired[int]
    from_start: NotRequired[bool]
    tolerance: NotRequired[float | None]
    pinned: NotRequired[list[PinnedSegment] | None]


class TelemetrySpec(TypedDict):
    mlflow: NotRequired[MlflowSpec | None]


class Blocker(TypedDict):
    kind: str
    name: str
    lacking: int
    held_by: list[Holder]
    own_jobs: list[str]


class DataSpec(TypedDict):
    source: NotRequired[str | None]
    format: NotRequired[FormatEnum]
    text_field: NotRequired[str]
    validation_fraction: NotRequired[float]
    mixture: NotRequired[list[MixturePart]]
    packing: NotRequired[PackingEnum]
    long_documents: NotRequired[LongDocumentsEnum]
    on_corrupt: NotRequired[OnCorruptEnum]
    shuffle_shards: NotRequired[int]
    cache_bytes: NotRequired[int | str]


class EvaluationTask(TypedDict):
    name: str
    kind: EvaluationTaskKindEnum
    source: str
    format: NotRequired[EvaluationTaskFormatEnum]
    text_field: NotRequired[str]
    scores: NotRequired[list[Literal['exact_match', 'f1', 'regex', 'json_schema']] | None]
    max_tokens: NotRequired[int | None]
    stop: NotRequired[list[StopItem] | None]
    pattern: NotRequired[str | None]
    json_schema: NotRequired[dict[str, Any] | None]


class LoraSpec(TypedDict):
    rank: NotRequired[int]
    alpha: NotRequired[float]
    rank_stabilized: NotRequired[bool]
    dropout: NotRequired[float]
    targets: NotRequired[list[TargetsEnum]]
    quantization: NotRequired[QuantizationEnum]
    export: NotRequired[ExportEnum]


class PreferenceSpec(TypedDict):
    loss: NotRequired[LossEnum]
    beta: NotRequired[float]
    label_smoothing: NotRequired[float]
    length_normalised: NotRequired[bool]
    reference: NotRequired[ReferenceEnum]
    desirable_weight: NotRequired[float]
    undesirable_weight: NotRequired[float]


class ScheduleSpec(TypedDict):
    name: NotRequired[ScheduleSpecNameEnum]
    warmup_steps: NotRequired[int]
    decay_fraction: NotRequired[float]
    decay_shape: NotRequired[DecayShapeEnum]
    final_fraction: NotRequired[float]


class TokenizerSpec(TypedDict):
    kind: NotRequired[TokenizerSpecKindEnum]
    vocab_size: NotRequired[int]
    trained_on: NotRequired[str | None]
    sample_characters: NotRequired[int | Literal['auto']]
    digits: NotRequired[DigitsEnum]
    special_tokens: NotRequired[list[SpecialToken]]
    digest: NotRequired[str]


class CompressionSpec(TypedDict):
    kind: NotRequired[CompressionSpecKindEnum]
    rank: NotRequired[int]
    start_step: NotRequired[int]


class MuonSpec(TypedDict):
    learning_rate: NotRequired[float | None]
    momentum: NotRequired[float]
    nesterov: NotRequired[bool]
    iterations: NotRequired[int]
    scale: NotRequired[ScaleEnum]


class MoEShape(TypedDict):
    num_experts: int
    experts_per_token: int
    expert_size: int
    num_groups: NotRequired[int]
    groups_per_token: NotRequired[int]
    shared_experts: NotRequired[int]
    first_dense_layers: NotRequired[int]
    layer_interval: NotRequired[int]
    scoring: NotRequired[ScoringEnum]
    normalise_weights: NotRequired[bool]
    weight_scale: NotRequired[float]
    balance_rate: NotRequired[float]
    biases: NotRequired[bool]
    weigh_inputs: NotRequired[bool]
    swiglu_limit: NotRequired[float | None]


class RopeScaling(TypedDict):
    kind: NotRequired[RopeScalingKindEnum]
    factor: float
    low_frequency_factor: NotRequired[float]
    high_frequency_factor: NotRequired[float]
    original_length: NotRequired[int | None]
    beta_fast: NotRequired[float]
    beta_slow: NotRequired[float]
    attention_factor: NotRequired[float | None]
    mscale: NotRequired[float | None]
    mscale_all_dim: NotRequired[float | None]
    truncate: NotRequired[bool]
    short_factors: NotRequired[list[ShortFactor] | None]
    long_factors: NotRequired[list[LongFactor] | None]


class ArtifactPage(TypedDict):
    items: list[Artifact]
    next_cursor: str | None


class CheckpointPage(TypedDict):
    items: list[Checkpoint]
    next_cursor: str | None


class JobPage(TypedDict):
    items: list[JobSummary]
    next_cursor: str | None


class ProfilePage(TypedDict):
    items: list[Profile]
    next_cursor: str | None


class PrepareSpec(TypedDict):
    data: DataSpec
    tokenizer: NotRequired[TokenizerSpec]
    report: NotRequired[ReportSpec | None]


class StartOutlook(TypedDict):
    starts_now: bool
    reason: Reason | None
    unblocks: str
    blocker: Blocker | None
    position: int
    starts_in_seconds: int | None
    p50_seconds: int | None
    p90_seconds: int | None


class Wait(TypedDict):
    blocker: Blocker | None
    unblocks: str
    position: int | None
    of: int | None
    starts_in_seconds: int | None
    p50_seconds: int | None
    p90_seconds: int | None
    at: str | None
    estimated_at: str | None


class OptimizerSpec(TypedDict):
    name: NotRequired[OptimizerSpecNameEnum]
    learning_rate: NotRequired[float | None]
    beta1: NotRequired[float]
    beta2: NotRequired[float]
    epsilon: NotRequired[float]
    weight_decay: NotRequired[float]
    gradient_clip: NotRequired[float | None]
    gradient_watch: NotRequired[GradientWatchSpec]
    offload: NotRequired[bool]
    muon: NotRequired[MuonSpec]
    groups: NotRequired[list[ParameterGroup]]


class ParallelismSpec(TypedDict):
    auto: NotRequired[bool]
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
    wide_qk_norm: NotRequired[bool]
    l2_qk_norm: NotRequired[bool]
    norm_position: NotRequired[NormPositionEnum]
    offset_norms: NotRequired[bool]
    activation: NotRequired[ActivationEnum]
    scale_embeddings: NotRequired[bool]
    query_pre_attn_scalar: NotRequired[int | None]
    attn_logit_softcapping: NotRequired[float | None]
    final_logit_softcapping: NotRequired[float | None]
    window_rope_theta: NotRequired[float | None]
    scale_window_rope: NotRequired[bool]
    fused_projections: NotRequired[bool]
    attention_bias: NotRequired[bool]
    attention_output_bias: NotRequired[bool]
    attention_sinks: NotRequired[bool]
    rotary_fraction: NotRequired[float]
    interleaved_rope: NotRequired[bool]
    no_rope_every: NotRequired[int | None]
    temperature_tuning: NotRequired[TemperatureTuning | None]
    sliding_window: NotRequired[int | None]
    full_attention_every: NotRequired[int | None]
    attention_chunk_size: NotRequired[int | None]
    pad_token_id: NotRequired[int | None]
    mla: NotRequired[MLAShape | None]
    moe: NotRequired[MoEShape | None]


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
    ran_seconds: float
    running_since: str | None
    progress: Progress | None
    validation_loss: BeforeAfter | None
    warnings: list[FieldProblem]
    links: Links
    attempts: list[Attempt]
    preemptions: int
    timings: Timings
    spec: Any
    resolved_spec: Any
    submission: str | None
    wait: Wait | None


class Alternative(TypedDict):
    start: StartOutlook
    cost: CostAtTimeLimit
    label: str
    changes: Any


class EvaluationJobSpec(TypedDict):
    tasks: list[EvaluationTask]
    sequence_length: int
    precision: NotRequired[EvaluationJobSpecPrecisionEnum]
    parallelism: NotRequired[ParallelismSpec]
    model: str


class ModelSpec(TypedDict):
    preset: NotRequired[Literal['llama-1m', 'llama-10m', 'llama-100m', 'llama-1b', 'llama-8b', 'llama-70b', 'llama-405b', 'moe-1m'] | None]
    shape: NotRequired[ModelShape | None]
    base: NotRequired[str | None]
    weights: NotRequired[WeightsEnum]


class OutputEvaluation(TypedDict):
    tasks: list[EvaluationTask]
    sequence_length: int
    precision: NotRequired[EvaluationJobSpecPrecisionEnum]
    parallelism: NotRequired[ParallelismSpec]
    resources: NotRequired[Resources | None]


class Plan(TypedDict):
    start: StartOutlook
    cost: CostAtTimeLimit
    expected: ExpectedRun | None
    budgets: list[BudgetEffect]
    alternatives: list[Alternative]
    resolved_spec: Any
    warnings: list[FieldProblem]
    estimate: Estimate


class OutputSpec(TypedDict):
    register: NotRequired[str | None]
    alias: NotRequired[str | None]
    evaluation: NotRequired[OutputEvaluation | None]


class TrainingSpec(TypedDict):
    model: ModelSpec
    data: DataSpec
    tokenizer: NotRequired[TokenizerSpec]
    steps: int
    epochs: NotRequired[float | None]
    tokens_per_step: int
    sequence_length: int
    optimizer: NotRequired[OptimizerSpec]
    schedule: NotRequired[ScheduleSpec]
    lora: NotRequired[LoraSpec | None]
    preference: NotRequired[PreferenceSpec | None]
    ema: NotRequired[EmaSpec | None]
    batch_ramp: NotRequired[BatchRamp | None]
    z_loss: NotRequired[float]
    precision: NotRequired[TrainingSpecPrecisionEnum]
    gradient_reduction: NotRequired[GradientReductionEnum]
    activation_checkpointing: NotRequired[ActivationCheckpointingEnum]
    recompute_layers: NotRequired[int | None]
    parallelism: NotRequired[ParallelismSpec]
    evaluation: NotRequired[EvaluationSpec]
    rollback: NotRequired[RollbackSpec]
    compile: NotRequired[bool | Literal['auto']]
    cuda_graphs: NotRequired[bool]
    deterministic: NotRequired[bool]
    seed: NotRequired[int]


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
    time_limit_seconds: NotRequired[int | str]
    wait_limit_seconds: NotRequired[int | str | None]
    schedule: NotRequired[Schedule]
    retry: NotRequired[RetryPolicy]
    preflight: NotRequired[bool]
    checkpoint: NotRequired[CheckpointPolicy]
    output: NotRequired[OutputSpec]
    telemetry: NotRequired[TelemetrySpec]
    training: NotRequired[TrainingSpec | None]
    prepare: NotRequired[PrepareSpec | None]
    evaluation: NotRequired[EvaluationJobSpec | None]
    replay: NotRequired[ReplaySpec | None]
    export: NotRequired[ExportSpec | None]
