"""JobSpec, version 1. The `training` and `prepare` parts are the trainer's own types; the rest is the platform's."""

import warnings
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AwareDatetime, Field, field_validator, model_validator

from trainer.contract.base import CheckedModel, FieldConflict, Pattern, SpecModel
from trainer.contract.data import PrepareSpec
from trainer.contract.evaluation import EvaluationJobSpec, EvaluationSettings
from trainer.contract.replay import MAX_SEGMENTS
from trainer.contract.telemetry import TelemetrySpec
from trainer.contract.training import CheckpointPolicy, OneTask, ProcessLayout, TrainingSpec
from trainer.contract.units import DURATION, SIZE

NAME_PATTERN, MAX_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$", 100
ALIAS_PATTERN, MAX_ALIAS = r"^[a-z][a-z0-9-]*$", 63  # of a model's version: no number, which is the version itself
Name = Annotated[
    str,
    Field(min_length=1, max_length=MAX_NAME),
    Pattern(NAME_PATTERN, "letters, digits, ., _ and -, beginning with a letter or digit"),
]
JobId = Annotated[str, Pattern(r"^job_[0-9A-HJKMNP-TV-Z]{26}$", "the id of a job: job_ and 26 letters and digits")]
JobReference = Annotated[
    str,
    Field(min_length=1, max_length=MAX_NAME),
    Pattern(NAME_PATTERN, "the id or the name of a job: letters, digits, ., _ and -, beginning with a letter or digit"),
]
LabelKey = Annotated[
    str,
    Field(max_length=63),
    Pattern(r"^[A-Za-z0-9][A-Za-z0-9._/-]*$", "letters, digits, ., _, / and -, beginning with a letter or digit"),
]
LabelValue = Annotated[str, Field(max_length=200)]
SecretName = Annotated[
    str,
    Field(max_length=63),
    Pattern(r"^[a-z][a-z0-9-]*$", "lower-case letters, digits and -, beginning with a letter"),
]
Alias = Annotated[
    str,
    Field(max_length=MAX_ALIAS),
    Pattern(ALIAS_PATTERN, "lower-case letters, digits and -, beginning with a letter"),
]
SECONDS_PER_DAY = 86_400
TASKS = ("training", "prepare", "evaluation", "replay", "export")
TASKS_BESIDE = ("evaluation", "replay", "export")
"""Tasks of which the resolved spec also has a `training`, by which a model is loaded."""
MAKING_NO_MODEL = ("prepare", "evaluation", "replay")


class Resources(ProcessLayout):
    """The cluster a job runs on, and how much of it."""

    cluster: Annotated[Name | None, Field(examples=["hpc"])] = None
    """Name of the cluster to run on. Without it the platform takes the first enabled cluster, in the order of their
    names, that has a pool with this `accelerator`."""
    accelerator: Name = "cpu"
    """Accelerator of the pool to run on, by the name that the cluster gives it, such as `h100`. `cpu` is a pool without
    accelerators."""
    spare_nodes: Annotated[int, Field(ge=0, le=64)] = 0
    """Number of additional nodes that wait to replace a node that is lost, has a fault of its accelerator or disk, or
    is much slower than the others, without a new attempt. They occupy slots like the other nodes. Refused for a job of
    one node, which is retried as a new attempt."""
    min_nodes: Annotated[
        Annotated[int, Field(ge=1)] | None, Field(examples=[2], exclude_if=lambda value: value is None)
    ] = None
    """Smallest number of nodes to train on after nodes were lost, or while some have not started, and no spare one is
    left: the attempt continues on the nodes that it has, with fewer data-parallel ranks and more micro-batches, so that
    each step has the same samples. Less than `nodes`, with a mesh that fits. Without it, an attempt ends when it loses
    a node, and does not begin before all have started. The slots of lost nodes remain reserved."""
    cpus_per_process: Annotated[Annotated[int, Field(ge=1, le=1024)] | None, Field(examples=[8])] = None
    """CPU cores requested for each process. Without it Slurm is asked for 1, and Kubernetes for what the cluster's
    configuration sets (1 by default). Ignored on a cluster of kind `local`."""
    memory_bytes_per_node: Annotated[
        Annotated[int, Field(ge=2**20, le=2**45), SIZE] | None, Field(examples=["64 GiB"])
    ] = None
    """Memory requested on each node, in bytes. Refused when it exceeds what the pool's nodes have. Without it the
    cluster's own default applies. Slurm rounds it up to MiB. Ignored on a cluster of kind `local`."""
    exclusive: bool = False
    """Whether no other job may share its nodes. On Kubernetes it keeps other jobs of the platform away, but not other
    pods. Ignored on a cluster of kind `local`."""
    max_switches: Annotated[Annotated[int, Field(ge=1, le=1000)] | None, Field(examples=[1])] = None
    """Largest number of lowest-level network switches that its nodes may be spread over. Slurm gets it as `--switches`,
    except through slurmrestd 0.0.38, which refuses the job. Kubernetes requires one domain of the innermost topology
    label for 1 and of the next one for more, and ignores it without topology labels or for one node. Ignored on a
    cluster of kind `local`."""

    @property
    def slots(self) -> int:
        """Return the slots that the job occupies in its pool, spare nodes included."""
        return (self.nodes + self.spare_nodes) * self.processes_per_node


class RetryPolicy(SpecModel):
    """How often a job is retried after a failure. A retry is a new attempt that resumes from the newest checkpoint.
    The wait before it begins at 2 seconds and doubles with each retry of the same class, up to 10 minutes. Whether an
    ending reason is retried, and whether that retry is charged or free, is in `docs/reference/errors.md`."""

    max_charged: Annotated[int, Field(ge=0, le=100)] = 1
    """Number of retries after failures that the run may have caused itself, such as a lack of memory, counted within
    `window_seconds`. 0 disables them."""
    max_free: Annotated[int, Field(ge=0, le=1000)] = 10
    """Number of retries after failures of the infrastructure or the platform, such as a lost node, counted within
    `window_seconds`. 0 disables them. Internal errors, exceptions on an accelerator and starts that took too long are
    retried at most twice."""
    window_seconds: Annotated[int, Field(ge=1, le=36_500 * SECONDS_PER_DAY), DURATION] = SECONDS_PER_DAY
    """Length of the window in which `max_charged` and `max_free` count, in seconds: attempts that ended earlier no
    longer count."""
    restarts_in_place: Annotated[int, Field(ge=0, le=100)] = 1
    """Number of times that an attempt restarts its worker processes on the same nodes before it ends, after a killed
    process, a lost connection between processes, an error in storage, an exception on an accelerator or an internal
    error. Each node that the attempt can lose (`spare_nodes`, `min_nodes`) adds one. These restarts are not retries."""
    hang_seconds: Annotated[
        Annotated[int, Field(ge=10, le=600), DURATION] | None,
        Field(examples=["2m"], exclude_if=lambda value: value is None),
    ] = None
    """Time after which a process that waits without progress in training or evaluation hangs, and is restarted, in
    seconds; five times the longest of its last 50 steps if that is more. 30 without it. Raise it for data that may
    arrive later than that."""


class Schedule(CheckedModel):
    """When a job may run. Both ceilings stop applying `time_limit_seconds` before the `deadline`, so that the job can
    still run for its time limit."""

    not_before: Annotated[AwareDatetime | None, Field(examples=["2026-03-10T22:00:00Z"])] = None
    """Earliest time at which the job may start. A date and time with an offset from UTC."""
    deadline: Annotated[AwareDatetime | None, Field(examples=["2026-03-12T08:00:00Z"])] = None
    """Time at which the job expires with the reason `deadline_missed` if it is waiting or paused then. It does not stop
    a job that is running. A date and time with an offset from UTC, later than `not_before`."""
    max_price_per_slot_hour: Annotated[Annotated[float, Field(ge=0, le=1e6)] | None, Field(examples=[1.5])] = None
    """Highest price per slot-hour at which the job starts, in the currency of the pool."""
    max_grams_per_kwh: Annotated[Annotated[float, Field(ge=0, le=1e6)] | None, Field(examples=[250])] = None
    """Highest carbon intensity of the cluster's electricity grid at which the job starts, in grams of CO2 per kWh.
    While the intensity is unknown the job waits."""
    deferrable: bool = False
    """Whether a running job also pauses at a checkpoint while price or carbon intensity is above its ceiling. Needs at
    least one ceiling. An unknown carbon intensity does not pause it."""

    def _conflicts(self) -> Iterator[FieldConflict]:
        if self.not_before and self.deadline and self.deadline <= self.not_before:
            yield FieldConflict("deadline", "deadline must be later than not_before", ("not_before",))
        if self.deferrable and self.max_price_per_slot_hour is None and self.max_grams_per_kwh is None:
            message = "deferrable needs a ceiling: max_price_per_slot_hour or max_grams_per_kwh"
            yield FieldConflict("deferrable", message, ("max_price_per_slot_hour", "max_grams_per_kwh"))


with warnings.catch_warnings():
    # Classes have a method of this name for abstract classes (abc), which a spec is not.
    warnings.filterwarnings("ignore", 'Field name "register"', UserWarning)

    class OutputEvaluation(EvaluationSettings):
        """An evaluation job to submit for the version that the job registers, in the name of the same user and team."""

        resources: Annotated[
            Resources | None, Field(examples=[{"processes_per_node": 1}], exclude_if=lambda value: value is None)
        ] = None
        """Cluster, accelerator and number of nodes and processes of the evaluation job; without it, those of this
        job."""

    class OutputSpec(CheckedModel):
        """What becomes of the model that the job exports."""

        register: Annotated[Name | None, Field(examples=["support-bot"])] = None
        """Name of a model of the team, of which the exported model becomes the next version when the job succeeds. The
        model is created if the team has none of this name."""
        alias: Annotated[Alias | None, Field(examples=["candidate"])] = None
        """Alias to point to the new version, such as candidate. It is created, or moved if the model has it. Needs
        `register`."""
        evaluation: Annotated[
            OutputEvaluation | None,
            Field(
                examples=[
                    {
                        "tasks": [{"name": "held-out", "kind": "loss", "source": "dataset:held-out"}],
                        "sequence_length": 256,
                    }
                ],
                exclude_if=lambda value: value is None,
            ),
        ] = None
        """Evaluations of the new version. When the job succeeds, an evaluation job is submitted with these fields and
        this job's project, labels and priority. It is a job like any other, with the same quotas and budgets; if it is
        refused, a warning and an event of this job say why. Needs `register`."""

        def _conflicts(self) -> Iterator[FieldConflict]:
            if self.alias is not None and self.register is None:
                yield FieldConflict("alias", "alias needs register, the name of the model", ("register",))
            if self.evaluation is not None and self.register is None:
                yield FieldConflict("evaluation", "evaluation needs register, the name of the model", ("register",))


class PinnedSegment(SpecModel):
    """A segment of a replay: the steps between two stored checkpoints of the replayed job."""

    start: Annotated[Annotated[str, Field(max_length=40)] | None, Field(examples=["ckp_01JGZ6W8Q4T0V5N2X3Y7ABCDEF"])]
    """Id of the checkpoint to begin with. Without it, the segment begins before the first step."""
    end: Annotated[str, Field(max_length=40, examples=["ckp_01JGZ6W8Q4T0V5N2X3Y7ABCDEG"])]
    """Id of the checkpoint to compare with."""
    first_step: Annotated[int, Field(ge=0, examples=[100])]
    """Number of steps that are done at `start`."""
    last_step: Annotated[int, Field(ge=1, examples=[200])]
    """Number of steps that are done at `end`."""


class ReplaySpec(SpecModel):
    """Segments of a finished training job to compute again from its stored checkpoints. Each result is compared with
    the next stored checkpoint. `resources` like those of that job compare all bits."""

    job: Annotated[JobId, Field(examples=["job_01JGZ6W8Q4T0V5N2X3Y7ABCDEF"])]
    """Id of the job to replay: of the same team, ended, and with two intact stored checkpoints, or one with
    `from_start`."""
    segments: Annotated[int, Field(ge=1, le=MAX_SEGMENTS)] = 1
    """Number of segments to replay, each from a checkpoint to the next one. They are chosen at random when the replay
    is submitted; all, if there are fewer."""
    from_start: bool = False
    """Whether the steps before the first stored checkpoint may be chosen too. Of a job that retains only its last
    checkpoints, these are most of its steps."""
    tolerance: Annotated[Annotated[float, Field(ge=0, le=1)] | None, Field(examples=[0.01])] = None
    """Largest difference of a tensor, where equal bits cannot be expected (another mesh, accelerator or version of
    torch, or a GPU without `training.deterministic`): the norm of the difference, relative to that of what the steps of
    the segment changed in a parameter, and to the tensor itself for the state of the optimizer. Without it 0.001 for a
    job with `training.precision` fp32, and 0.05 for another one; the resolved spec has the number."""
    pinned: Annotated[
        list[PinnedSegment] | None,
        Field(
            examples=[[{"start": "ckp_1", "end": "ckp_2", "first_step": 100, "last_step": 200}]],
            exclude_if=lambda value: value is None,
        ),
    ] = None
    """The segments that were chosen, in the order of their steps. Set by the platform in the resolved spec; refused in
    a submitted one."""


class ExportSpec(SpecModel):
    """A stored checkpoint to export as a model, as the end of its training exports one: the average of the weights with
    `training.ema`, adapters with `training.lora.export` adapter. Any number of processes can load it; one that differs
    from that of the training takes the default `training.parallelism`."""

    job: Annotated[JobReference, Field(examples=["job_01JGZ6W8Q4T0V5N2X3Y7ABCDEF"])]
    """Id or name of the training job that saved the checkpoint: of the same team, with its data and base model still
    stored. It may be running. The resolved spec has the id."""
    step: Annotated[int, Field(ge=1, examples=[2000])]
    """Number of steps that are done at the checkpoint. If the job saved several after this step, the newest is
    exported."""
    checkpoint: Annotated[
        Annotated[str, Field(max_length=40)] | None,
        Field(examples=["ckp_01JGZ6W8Q4T0V5N2X3Y7ABCDEF"], exclude_if=lambda value: value is None),
    ] = None
    """Id of the checkpoint. Set by the platform in the resolved spec; refused in a submitted one."""


class JobSpec(OneTask, CheckedModel):
    """A job: it either trains a model, or prepares data that other jobs train on, or evaluates a trained model, or
    replays a finished job, or exports a stored checkpoint."""

    version: Literal[1] = 1
    """Version of this format. There is only version 1."""
    name: Annotated[Name, Field(examples=["llama-1m-baseline"])]
    """Name of the job in lists and exports. Several jobs may have the same name; the id distinguishes them."""
    team: Annotated[Name | None, Field(examples=["research"])] = None
    """Name or id of the team that owns the job and whose quota and budget it uses. Can be left out by a user or token
    of a single team."""
    project: Name = "default"
    """Project of the team under which the job is listed and its costs are reported. It is created if the team has no
    project of that name; an archived project is refused."""
    labels: Annotated[
        dict[LabelKey, LabelValue],
        Field(max_length=64, json_schema_extra={"additionalProperties": False}, examples=[{"sweep": "lr"}]),
    ] = {}
    """Labels by which lists of jobs can be filtered. They do not affect the run. A key has up to 63 letters, digits and
    `._/-`, and begins with a letter or digit; a value has up to 200 characters."""
    priority: Literal["low", "normal", "high"] = "normal"
    """Priority class. Jobs that stay within their team's own quota are considered first, then those of a higher class.
    A job may preempt jobs of a lower class of its own team. The class of a waiting job can rise with time, if the
    administrator configures it. Slurm and Kubernetes get it as QOS and priority class where the cluster's configuration
    names them."""
    resources: Resources = Resources()
    """Cluster, accelerator and number of nodes and processes."""
    after: Annotated[list[JobId], Field(max_length=32, examples=[["job_01JGZ6W8Q4T0V5N2X3Y7ABCDEF"]])] = []
    """Ids of jobs of the same team that must succeed before this one starts. If one of them ends in another way, this
    job fails with the reason `dependency_failed`."""
    secrets: Annotated[list[SecretName], Field(max_length=32, examples=[["hf-token"]])] = []
    """Names of secrets of the team to pass to the job's processes as environment variables: `hf-token` becomes
    `ATHANOR_JOB_SECRET_HF_TOKEN`."""
    time_limit_seconds: Annotated[int, Field(ge=10, le=90 * SECONDS_PER_DAY), DURATION] = SECONDS_PER_DAY
    """Maximum run time of one attempt, in seconds from its launch on the cluster. At the limit the job saves a
    checkpoint and ends with the reason `deadline`. A quota's `max_run_seconds` may demand less."""
    wait_limit_seconds: Annotated[
        Annotated[int, Field(ge=1, le=365 * SECONDS_PER_DAY), DURATION] | None, Field(examples=["1d"])
    ] = None
    """Maximum time that the job may wait for its launch, the cluster's own queue included, or stay paused, in seconds,
    counted again whenever it is queued or paused. Then it expires with the reason `waited_too_long`. Without it
    there is no limit."""
    schedule: Schedule = Schedule()
    """Earliest start, deadline, and ceilings for price and carbon intensity."""
    retry: RetryPolicy = RetryPolicy()
    """How often the job is retried after a failure."""
    preflight: Annotated[bool, Field(exclude_if=lambda value: not value)] = False
    """Whether devices, network and storage are measured before the first step of each attempt, for at most a minute. A
    node that is broken ends the attempt, and the next one avoids it; so does a slow node where a spare one can take its
    place. Other slow nodes are reported. `athanor preflight JOB` shows the figures. Ignored with `prepare`."""
    checkpoint: CheckpointPolicy = CheckpointPolicy()
    """How often checkpoints are saved and how many are retained. Ignored with `prepare`."""
    output: Annotated[OutputSpec, Field(exclude_if=lambda value: value == OutputSpec())] = OutputSpec()
    """What becomes of the exported model: a version of a registered model, and an alias for it. Not with `prepare`."""
    telemetry: TelemetrySpec = TelemetrySpec()
    """Further destinations of the run's metrics. Ignored with `prepare`."""
    training: TrainingSpec | None = None
    """What to train, on which data, and how. Give one of `training`, `prepare`, `evaluation`, `replay` and
    `export`."""
    prepare: PrepareSpec | None = None
    """Data to tokenize and store, without training. Takes one process on each node. Give one of `training`, `prepare`,
    `evaluation`, `replay` and `export`."""
    evaluation: Annotated[
        EvaluationJobSpec | None,
        Field(
            examples=[
                {
                    "model": "model:support-bot@candidate",
                    "tasks": [{"name": "held-out", "kind": "loss", "source": "dataset:held-out"}],
                    "sequence_length": 256,
                }
            ],
            exclude_if=lambda value: value is None,
        ),
    ] = None
    """A trained model to evaluate. Give one of `training`, `prepare`, `evaluation`, `replay` and `export`. The resolved
    spec also has a `training` of one step, by which the model is loaded; nothing is trained."""
    replay: Annotated[
        ReplaySpec | None,
        Field(
            examples=[{"job": "job_01JGZ6W8Q4T0V5N2X3Y7ABCDEF", "segments": 2}],
            exclude_if=lambda value: value is None,
        ),
    ] = None
    """A finished training job to verify. Give one of `training`, `prepare`, `evaluation`, `replay` and `export`. The
    resolved spec also has the `training` of that job; nothing is stored but the results."""
    export: Annotated[
        ExportSpec | None,
        Field(
            examples=[{"job": "job_01JGZ6W8Q4T0V5N2X3Y7ABCDEF", "step": 2000}],
            exclude_if=lambda value: value is None,
        ),
    ] = None
    """A checkpoint to export, for a version of a registered model (`output.register`) or to download. Give one of
    `training`, `prepare`, `evaluation`, `replay` and `export`. The resolved spec also has the `training` of the
    checkpoint's job; nothing is trained."""

    @field_validator("telemetry")
    @classmethod
    def _server_is_reached_by_http(cls, telemetry: TelemetrySpec) -> TelemetrySpec:
        address = urlsplit(telemetry.mlflow.tracking_uri) if telemetry.mlflow else None
        if address is not None and (address.scheme not in ("http", "https") or not address.hostname):
            raise ValueError("mlflow.tracking_uri must begin with http:// or https:// and name a server")
        if address is not None and "@" in address.netloc:
            raise ValueError("mlflow.tracking_uri holds a password, which all of the team can read; use secrets")
        return telemetry

    @model_validator(mode="after")
    def _load_evaluated_model(self) -> Self:
        if self.evaluation is not None and self.training is None:
            self.__dict__["training"] = self.evaluation.as_training()
        return self

    def _conflicts(self) -> Iterator[FieldConflict]:
        given = [name for name in TASKS if getattr(self, name) is not None]
        is_pinned = (self.replay is not None and self.replay.pinned is not None) or (
            self.export is not None and self.export.checkpoint is not None
        )
        if is_pinned and self.training is not None:
            given.remove("training")  # as below
        elif self.evaluation is not None and self.training is not None and self.evaluation.is_loaded_by(self.training):
            given.remove("training")  # a resolved spec has it
        if len(given) != 1:
            found = f"; it has {' and '.join(given)}" if given else ""
            tasks = f"{', '.join(TASKS[:-1])} and {TASKS[-1]}"
            yield FieldConflict("", f"give exactly one of {tasks}{found}")
        task = next((name for name in MAKING_NO_MODEL if getattr(self, name) is not None), None)
        if self.output.register is not None and task is not None:
            yield FieldConflict("output", f"{task} makes no model to register; leave output out", (task,))
        nodes = self.resources.nodes + self.resources.spare_nodes
        if self.prepare is not None and self.prepare.report is not None and nodes > 1:
            message = f"prepare.report is made by one node, not {nodes}; leave resources.nodes and spare_nodes out"
            yield FieldConflict("resources.nodes", message, ("prepare.report", "resources.spare_nodes"))

    @property
    def base(self) -> str | None:
        """Return the base model: that of the training, or of the data report that the job makes."""
        if self.training is not None:
            return self.training.model.base
        return None if self.prepare is None or self.prepare.report is None else self.prepare.report.base

    @property
    def trains(self) -> bool:
        """Return whether the job trains a model."""
        return self.training is not None and all(getattr(self, name) is None for name in TASKS_BESIDE)

    @property
    def source_job(self) -> str | None:
        """Return the id of the job of which a replay or an export reads checkpoints; None for other jobs."""
        if self.replay is not None:
            return self.replay.job
        return None if self.export is None else self.export.job


def is_training(resolved: dict[str, Any]) -> bool:
    """Return whether the job of a resolved spec trains a model: it has a `training` that is not only loaded."""
    return resolved.get("training") is not None and task_beside_training(resolved) is None


def task_beside_training(resolved: dict[str, Any]) -> str | None:
    """Return the task for which the `training` of a resolved spec is only loaded, None if there is no such task."""
    return next((name for name in TASKS_BESIDE if resolved.get(name)), None)


def base_of(resolved: dict[str, Any]) -> str:
    """Return the base model of a spec: that of its training, or of the data report that it makes; empty if it has
    none."""
    model = (resolved.get("training") or {}).get("model") or {}
    report = (resolved.get("prepare") or {}).get("report") or {}
    return str(model.get("base") or report.get("base") or "")


PRIORITY_VALUES: dict[str, int] = {"low": -10, "normal": 0, "high": 10}
