"""JobSpec, version 1. The `training` and `prepare` parts are the trainer's own types; the rest is the platform's."""

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AwareDatetime, Field, field_validator, model_validator

from trainer.contract.base import PositiveInt, SpecModel
from trainer.contract.data import PrepareSpec
from trainer.contract.telemetry import TelemetrySpec
from trainer.contract.training import CheckpointPolicy, OneTask, ProcessLayout, TrainingSpec

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", min_length=1, max_length=100)]
JobId = Annotated[str, Field(pattern=r"^job_[0-9A-HJKMNP-TV-Z]{26}$")]
LabelKey = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$", max_length=63)]
LabelValue = Annotated[str, Field(max_length=200)]
SecretName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$", max_length=63)]
SECONDS_PER_DAY = 86_400


class Resources(ProcessLayout):
    """Where, and on how many slots. Without `cluster` the platform takes the first that has the accelerator.
    `spare_nodes` wait to take the place of a node that is lost. `exclusive`: nobody else on its nodes. `max_switches`:
    how many switches of the lowest level its nodes may lie below. What is left out the cluster decides."""

    cluster: Name | None = None
    accelerator: Name = "cpu"
    spare_nodes: Annotated[int, Field(ge=0, le=64)] = 0
    cpus_per_process: Annotated[int, Field(ge=1, le=1024)] | None = None
    memory_bytes_per_node: Annotated[int, Field(ge=2**20, le=2**45)] | None = None
    exclusive: bool = False
    max_switches: Annotated[int, Field(ge=1, le=1000)] | None = None

    @property
    def slots(self) -> int:
        """What it holds of its pool, spare nodes too."""
        return (self.nodes + self.spare_nodes) * self.processes_per_node


class RetryPolicy(SpecModel):
    """How often a job may start anew. `max_charged`: faults of the run itself, counted within `window_seconds`.
    `max_free`: faults of the infrastructure. `restarts_in_place`: new processes within one attempt."""

    max_charged: Annotated[int, Field(ge=0, le=100)] = 1
    max_free: Annotated[int, Field(ge=0, le=1000)] = 10
    window_seconds: PositiveInt = SECONDS_PER_DAY
    restarts_in_place: Annotated[int, Field(ge=0, le=100)] = 1


class Schedule(SpecModel):
    """When it may run. It does not start before `not_before`, and while it waits expires at `deadline`. It starts only
    while the pool's price and its grid's carbon intensity are at most the ceilings, unless it could then no longer run
    for its time limit by the deadline; a `deferrable` one also pauses at a checkpoint when they rise above them."""

    not_before: AwareDatetime | None = None
    deadline: AwareDatetime | None = None
    max_price_per_slot_hour: Annotated[float, Field(ge=0, le=1e6)] | None = None
    max_grams_per_kwh: Annotated[float, Field(ge=0, le=1e6)] | None = None
    deferrable: bool = False

    @model_validator(mode="after")
    def _in_order(self) -> "Schedule":
        if self.not_before and self.deadline and self.deadline <= self.not_before:
            raise ValueError("deadline must be later than not_before")
        if self.deferrable and self.max_price_per_slot_hour is None and self.max_grams_per_kwh is None:
            raise ValueError("deferrable needs a ceiling: max_price_per_slot_hour or max_grams_per_kwh")
        return self


class JobSpec(OneTask, SpecModel):
    """One run: it trains a model, or only prepares data for others to train on. It waits for the jobs in `after` to
    succeed; a job that waits, or stays paused, for longer than `wait_limit_seconds` expires.
    `time_limit_seconds` counts from the launch of each attempt.
    `secrets` of its team reach its processes as environment variables: hf-token as ATHANOR_JOB_SECRET_HF_TOKEN."""

    version: Literal[1] = 1
    name: Name
    team: Name | None = None
    project: Name = "default"
    labels: Annotated[
        dict[LabelKey, LabelValue], Field(max_length=64, json_schema_extra={"additionalProperties": False})
    ] = {}
    priority: Literal["low", "normal", "high"] = "normal"
    resources: Resources = Resources()
    after: Annotated[list[JobId], Field(max_length=32)] = []
    secrets: Annotated[list[SecretName], Field(max_length=32)] = []
    time_limit_seconds: Annotated[int, Field(ge=10, le=90 * SECONDS_PER_DAY)] = SECONDS_PER_DAY
    wait_limit_seconds: Annotated[int, Field(ge=1, le=365 * SECONDS_PER_DAY)] | None = None
    schedule: Schedule = Schedule()
    retry: RetryPolicy = RetryPolicy()
    checkpoint: CheckpointPolicy = CheckpointPolicy()
    telemetry: TelemetrySpec = TelemetrySpec()
    training: TrainingSpec | None = None
    prepare: PrepareSpec | None = None

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
    def _one_task(self) -> "JobSpec":
        if (self.training is None) == (self.prepare is None):
            raise ValueError("give either training or prepare, not both and not neither")
        return self


PRIORITY_VALUES: dict[str, int] = {"low": -10, "normal": 0, "high": 10}
