"""Messages between an attempt and the platform: its configuration, and the reports of its processes."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from trainer.contract.base import MAX_INT32, Count32, Int32, JsonObject, Step32, WireModel
from trainer.contract.checkpoint_interval import SLOT_HOURS_BETWEEN_FAILURES
from trainer.contract.data import PrepareSpec
from trainer.contract.evaluation import EvaluationJobSpec
from trainer.contract.export import CheckpointExport
from trainer.contract.manifest import CheckpointId, CheckpointManifest, DatasetManifest, Sha256, StoredFile
from trainer.contract.replay import Replay
from trainer.contract.rollback import Rollback
from trainer.contract.system import SystemSample
from trainer.contract.telemetry import TelemetrySpec
from trainer.contract.training import CheckpointPolicy, OneTask, ProcessLayout, TrainingSpec


class DatasetSource(WireModel):
    """A data set to train on.

    `origin`: `builtin` (generated on the node), `sealed` (parts encrypted with the data set's key) or `plain` (objects
    of the user's own bucket, not encrypted). `prepared`: the manifest of its tokenised shards, if they exist.
    """

    dataset_id: str
    name: str
    origin: Literal["builtin", "sealed", "plain"]
    raw: list[StoredFile] = []
    prepared: DatasetManifest | None = None


class BaseModelSource(WireModel):
    """The base model of a run: its files in Hugging Face's layout.

    `origin`: `sealed` (encrypted with the key of the job that trained it) or `plain` (objects of the user's own
    bucket).
    """

    name: str
    origin: Literal["sealed", "plain"]
    files: list[StoredFile]


class RunConfig(OneTask, WireModel):
    """Reply of GET /run.

    `prefix`: the only part of the object store that this attempt may write to. Exactly one of `training` and `prepare`
    (which only prepares data) is set; with `evaluation`, the model of `training` is evaluated instead of trained;
    with `replay`, segments of a finished job with this `training` are computed again, and compared; with `export`, a
    checkpoint of a job with this `training` is exported.
    `outbound_allow`: exemptions by an administrator from the rule that addresses
    chosen by users must be public (`trainer.contract.addresses`); None (standalone runs) exempts everything.
    `compared`: the evaluation data that a data report compares its data with.
    `cache_scope`: the team, which has its own part of a node's cache; empty: the entire cache. `best`: the checkpoint
    with the lowest held-out loss, with `checkpoint.keep_best`. `rollbacks`: of all attempts, oldest first.
    `preflight`: measure devices and network before the first step. `hang_seconds`: None for `timeouts.HANG_SECONDS`.
    `slot_hours_between_failures`: of the pool, with `checkpoint.every_minutes` `auto`; else, and in a standalone run,
    the published figure.
    `min_nodes`: the number of nodes that the run may shrink to; None: it does not.
    """

    job_id: str
    attempt_id: str
    attempt_number: int
    prefix: str
    layout: ProcessLayout
    training: TrainingSpec | None
    prepare: PrepareSpec | None = None
    evaluation: EvaluationJobSpec | None = None
    replay: Replay | None = None
    export: CheckpointExport | None = None
    checkpoint: CheckpointPolicy
    dataset: DatasetSource
    more_datasets: list[DatasetSource] = []
    compared: list[DatasetSource] = []
    base: BaseModelSource | None = None
    resume: CheckpointManifest | None = None
    best: CheckpointManifest | None = None
    rollbacks: list[Rollback] = []
    max_restarts_in_place: int = 0
    hang_seconds: float | None = None
    preflight: bool = False
    spare_nodes: int = 0
    min_nodes: int | None = None
    slot_hours_between_failures: Annotated[float, Field(gt=0.0)] = SLOT_HOURS_BETWEEN_FAILURES
    telemetry: TelemetrySpec = TelemetrySpec()
    outbound_allow: str | None = ""
    cache_scope: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{0,64}$")] = ""
    heartbeat_seconds: float = 5.0
    deadline: datetime | None = None

    @model_serializer(mode="wrap")
    def _move_training(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Write the `training` of another task under another name: trainers of earlier versions would train."""
        found: dict[str, Any] = serialize(self)
        name = self._name_of_training
        return found if name == "training" else {**found, name: found["training"], "training": None}

    @model_validator(mode="before")
    @classmethod
    def _read_training(cls, data: Any) -> Any:
        for name in ("evaluated", "replayed", "exported"):
            if isinstance(data, dict) and data.get(name) is not None:
                return {**data, "training": data[name]}
        return data

    @property
    def _name_of_training(self) -> str:
        if self.replay is not None:
            return "replayed"
        if self.export is not None:
            return "exported"
        return "training" if self.evaluation is None else "evaluated"

    @property
    def trains(self) -> bool:
        """Return whether the run trains a model: it neither evaluates nor exports one, nor replays another run."""
        tasks_beside = (self.evaluation, self.replay, self.export)
        return self.training is not None and all(task is None for task in tasks_beside)

    @property
    def expendable_nodes(self) -> int:
        """Return the number of nodes, spare ones included, that an attempt can lose and continue."""
        return self.spare_nodes + self.layout.nodes - (self.min_nodes or self.layout.nodes)

    @property
    def makes_shadows(self) -> bool:
        """Return whether ranks copy their state to memory, from which a restart in place continues."""
        is_restarted = bool(self.max_restarts_in_place or self.spare_nodes) or self.min_nodes is not None
        return self.checkpoint.shadow_every_steps != "none" and is_restarted and self.trains

    @property
    def is_replicated(self) -> bool:
        """Return whether ranks send these copies to other nodes: it continues if it loses one."""
        return self.layout.nodes > 1 and self.expendable_nodes > 0

    def placed_on(self, num_nodes: int) -> "RunConfig":
        """Return the configuration for ranks on this many nodes; 0: on all."""
        if num_nodes in (0, self.layout.nodes):
            return self
        return self.model_copy(update={"layout": self.layout.model_copy(update={"nodes": num_nodes})})

    @property
    def datasets(self) -> list[DatasetSource]:
        """Return the data sets, one for each part of `data`, in order."""
        return [self.dataset, *self.more_datasets]


class DataKeys(WireModel):
    """Reply of GET /keys: Tink streaming keysets (JSON, base64) and secrets.

    `dataset`: of the first data set. `more_datasets`: of all others that the job reads, by id. `base`: of the job that
    trained the base model. `replayed`: of the job of which checkpoints are replayed or exported. `secrets`: the team's
    secrets that the spec names, by name.
    """

    job: Annotated[str, Field(repr=False)]
    dataset: Annotated[str, Field(repr=False)]
    more_datasets: Annotated[dict[str, str], Field(repr=False)] = {}
    base: Annotated[str, Field(repr=False)] = ""
    replayed: Annotated[str, Field(repr=False)] = ""
    secrets: Annotated[dict[str, str], Field(repr=False)] = {}

    def of_dataset(self, dataset_id: str) -> str:
        """Return the key of a data set."""
        return self.more_datasets.get(dataset_id, self.dataset)


class StopRequest(StrEnum):
    """Why the platform asks a run to stop."""

    CANCEL = "cancel"
    PAUSE = "pause"
    DEADLINE = "deadline"


class Heartbeat(WireModel):
    """Body of POST /heartbeat, sent by each node's agent.

    `step`: the last finished step, -1 before the first. `node_rank`: the node's number in its backend, which does not
    change when ranks are assigned again. `interruption`: the interruption notice of a spot machine's provider.
    """

    node_rank: Count32
    generation: Count32
    phase: str
    step: Step32 = -1
    processes_alive: Count32 = 0
    interruption: Annotated[str, Field(max_length=200)] = ""


MAX_PROFILED_STEPS = 50


class ProfileRequest(WireModel):
    """Request to trace the next `steps` steps on every rank. `number` counts the requests of a job from 1."""

    number: Annotated[int, Field(ge=1, le=MAX_INT32)]
    steps: Annotated[int, Field(ge=1, le=MAX_PROFILED_STEPS)]


class HeartbeatReply(WireModel):
    """Reply to a heartbeat.

    `stop`: if set, write a checkpoint, then end with `EndClass.STOPPED`. `profile`: repeated until the profile is
    registered. `round`: the newest rendezvous round that a node of the run has requested. `grows`: whether it was begun
    because the run can continue on more nodes.
    """

    stop: StopRequest | None = None
    round: int = 0
    grows: bool = False
    profile: ProfileRequest | None = None


class MetricPoint(WireModel):
    """Values of one step. A name is `[a-z0-9_/]+`; a value that is not finite is sent as null."""

    step: Count32
    time: datetime
    generation: Count32 = 0
    values: dict[str, float | None]


class LogLine(WireModel):
    """One line of output. `rank` is -1 for lines that no rank wrote."""

    time: datetime
    rank: Step32
    stream: Literal["stdout", "stderr", "agent"]
    text: str


class ProgressEvent(WireModel):
    """An event for the job's timeline, such as the end of a start-up phase, a restart, or a warning.

    The platform drops a `type` that is not in `events.AGENT_EVENT_TYPES` and records that it did.
    """

    time: datetime
    type: Annotated[str, Field(pattern=r"^[a-z_]+(\.[a-z_]+)*$")]
    data: JsonObject = {}


class Batch(WireModel):
    """Body of POST /metrics, /logs, /progress and /system; exactly one of the lists is filled.

    `sequence` counts a writer's batches from 0. The reply is `BatchReply`. A batch that is already stored is
    acknowledged and ignored; one that leaves a gap is refused with 409 and `next_sequence`. The platform limits each
    `time` to the span from the attempt's creation to the platform's current time.
    """

    writer: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,40}$")]
    sequence: Annotated[int, Field(ge=0, lt=MAX_INT32)]
    points: list[MetricPoint] = []
    lines: list[LogLine] = []
    events: list[ProgressEvent] = []
    samples: list[SystemSample] = []


class BatchReply(WireModel):
    """The sequence number that the platform expects next from this writer."""

    next_sequence: int


class PresignRequest(WireModel):
    """Body of POST /storage:presign. For `put`, each key must start with `RunConfig.prefix`."""

    operation: Literal["get", "put"]
    keys: Annotated[list[str], Field(min_length=1, max_length=1000)]


class PresignedUrl(WireModel):
    """A URL that reads or writes one object until `expires_at`."""

    key: str
    url: str
    expires_at: datetime


class PresignReply(WireModel):
    """A URL for each requested key."""

    urls: list[PresignedUrl]


class DamagedCheckpoint(CheckpointId):
    """Body of POST /checkpoints:damaged: a checkpoint of the job that cannot be read, and why."""

    because: Annotated[str, Field(max_length=2000)]


class PreparationRequest(WireModel):
    """Body of POST /preparations:claim: ask to prepare a data set by a recipe, or renew that with the granted `token`.

    Of all attempts that ask, one is granted it; the others wait for its result. `helps`: this node is never granted it.
    `store`: HOST:PORT where the holder's processes share the work with those of the other nodes of its attempt.
    """

    dataset_id: Annotated[str, Field(max_length=40)]
    recipe: Sha256
    token: UUID | None = None
    helps: bool = False
    store: Annotated[str, Field(max_length=300)] | None = None


class PreparationReply(WireModel):
    """Reply to a `PreparationRequest`.

    `prepare`: granted, under `token`, which is renewed within every `renew_seconds`. `wait`: attempt of `job_id`
    prepares it; ask again. `prepared`: its manifest. `failed`: the data has the error `because`, found by `job_id`.
    `store`: with `wait`, where this node can help another node of its own attempt.
    """

    state: Literal["prepare", "wait", "prepared", "failed"]
    token: UUID | None = None
    renew_seconds: float = 10.0
    job_id: str = ""
    prepared: DatasetManifest | None = None
    because: str = ""
    store: str | None = None


MAX_DATA_ERROR = 2000


class PreparationRelease(WireModel):
    """Body of POST /preparations:release: the attempt gives up what `token` grants.

    `data_error`: the error in the data, which every other attempt would find too; empty: another may try.
    """

    dataset_id: Annotated[str, Field(max_length=40)]
    recipe: Sha256
    token: UUID
    data_error: Annotated[str, Field(max_length=MAX_DATA_ERROR)] = ""


class PreparationRegistration(WireModel):
    """Body of POST /preparations:register: the stored result of a preparation that `token` grants."""

    token: UUID
    manifest: DatasetManifest


class EndClass(StrEnum):
    """Why an attempt's processes ended, as its agent saw it. The platform maps each to a reason."""

    COMPLETED = "completed"
    STOPPED = "stopped"
    BAD_SPEC = "bad_spec"
    DATA_ERROR = "data_error"
    OUT_OF_MEMORY = "out_of_memory"
    LOSS_DIVERGED = "loss_diverged"
    STORAGE_ERROR = "storage_error"
    CHECKPOINT_DAMAGED = "checkpoint_damaged"
    NODE_STORAGE_ERROR = "node_storage_error"
    NODE_UNFIT = "node_unfit"
    VERSIONS_DIFFER = "versions_differ"
    COLLECTIVE_TIMEOUT = "collective_timeout"
    HANG = "hang"
    GPU_FAULT = "gpu_fault"
    DEVICE_EXCEPTION = "device_exception"
    NETWORK_ERROR = "network_error"
    SILENT_CORRUPTION = "silent_corruption"
    SLOW_NODE = "slow_node"
    PROCESS_KILLED = "process_killed"
    PLATFORM_UNREACHABLE = "platform_unreachable"
    USER_ERROR = "user_error"
    INTERNAL_ERROR = "internal_error"


class AttemptEnd(WireModel):
    """Body of POST /end, and the end marker in the object store, which outlives the scheduler's record of the job."""

    end_class: EndClass
    last_step: Step32
    message: str = ""
    node_rank: Count32 = 0
    exit_codes: dict[str, Int32] = {}
    stopped_for: StopRequest | None = None
    at: datetime


# Exit statuses of `python -m trainer.agent`: what a scheduler shows if no report arrived.
EXIT_STATUS: dict[EndClass, int] = {
    EndClass.COMPLETED: 0,
    EndClass.USER_ERROR: 1,
    EndClass.STOPPED: 64,
    EndClass.BAD_SPEC: 65,
    EndClass.DATA_ERROR: 66,
    EndClass.OUT_OF_MEMORY: 67,
    EndClass.LOSS_DIVERGED: 68,
    EndClass.STORAGE_ERROR: 69,
    EndClass.COLLECTIVE_TIMEOUT: 70,
    EndClass.PROCESS_KILLED: 71,
    EndClass.PLATFORM_UNREACHABLE: 72,
    EndClass.INTERNAL_ERROR: 73,
    EndClass.CHECKPOINT_DAMAGED: 74,
    EndClass.NODE_STORAGE_ERROR: 75,
    EndClass.HANG: 76,
    EndClass.GPU_FAULT: 77,
    EndClass.DEVICE_EXCEPTION: 78,
    EndClass.NETWORK_ERROR: 79,
    EndClass.SILENT_CORRUPTION: 80,
    EndClass.SLOW_NODE: 81,
    EndClass.NODE_UNFIT: 82,
    EndClass.VERSIONS_DIFFER: 83,
}

_VAGUE = {
    EndClass.PROCESS_KILLED: 1,
    EndClass.INTERNAL_ERROR: 1,
    EndClass.DEVICE_EXCEPTION: 1,
    EndClass.HANG: 1,
    EndClass.NETWORK_ERROR: 2,
    EndClass.COLLECTIVE_TIMEOUT: 3,
    EndClass.STOPPED: 4,
}


def vagueness(end_class: EndClass) -> int:
    """Return how little an end explains the ends of other processes of the same attempt: the least is the root cause.

    0: has a cause of its own, such as a fault of a GPU. 1: may be the effect of another process's end. Above: usually
    is one, as every loss of a peer.
    """
    return _VAGUE.get(end_class, 0)
