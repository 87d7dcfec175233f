"""What a run computes: the part of a job spec that the trainer reads.

Everything here changes the numbers of a run or the cost of a step; where a run is placed, who owns it
and how often it may be retried are the platform's (`athanor.specs`).
"""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from trainer.contract.base import PositiveInt, SpecModel
from trainer.contract.data import DataSpec, TokenizerSpec
from trainer.contract.models import MODELS, ModelShape
from trainer.contract.optimisation import BatchRamp, OptimizerSpec, ScheduleSpec, StepSizes, step_sizes
from trainer.contract.parallelism import ParallelismSpec

LARGEST_SEED = 2**63 - 1


PresetName = Literal["llama-1m", "llama-10m", "llama-100m", "llama-1b", "llama-8b", "llama-70b", "llama-405b", "moe-1m"]


class ModelSpec(SpecModel):
    """A named shape (`preset`) or a shape of one's own (`shape`); exactly one of the two."""

    preset: PresetName | None = None
    shape: ModelShape | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> "ModelSpec":
        if (self.preset is None) == (self.shape is None):
            raise ValueError("give either preset or shape, not both and not neither")
        return self

    def resolve(self) -> ModelShape:
        if self.shape is not None:
            return self.shape
        assert self.preset is not None
        return MODELS[self.preset]


class EvaluationSpec(SpecModel):
    """Held-out loss over `sequences` validation sequences: before the first step, every `every_steps`, at the end."""

    every_steps: PositiveInt = 100
    sequences: PositiveInt = 64


class CheckpointPolicy(SpecModel):
    """When state becomes durable. A checkpoint is always written on a stop request and at the end."""

    every_steps: PositiveInt = 100
    keep_last: PositiveInt = 2


class TrainingSpec(SpecModel):
    model: ModelSpec
    data: DataSpec
    tokenizer: TokenizerSpec = TokenizerSpec()
    steps: PositiveInt
    tokens_per_step: PositiveInt
    sequence_length: Annotated[int, Field(ge=8, le=1_048_576)]
    optimizer: OptimizerSpec = OptimizerSpec()
    schedule: ScheduleSpec = ScheduleSpec()
    batch_ramp: BatchRamp | None = None
    z_loss: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    precision: Literal["fp32", "bf16"] = "fp32"
    activation_checkpointing: Literal["none", "full"] = "none"
    parallelism: ParallelismSpec = ParallelismSpec()
    evaluation: EvaluationSpec = EvaluationSpec()
    compile: bool = False
    seed: Annotated[int, Field(ge=0, le=LARGEST_SEED)] = 1

    @model_validator(mode="after")
    def _whole_sequences(self) -> "TrainingSpec":
        _check_whole("tokens_per_step", self.tokens_per_step, self.sequence_length)
        if self.schedule.warmup_steps > self.steps:
            raise ValueError(f"schedule.warmup_steps {self.schedule.warmup_steps} exceeds steps {self.steps}")
        if self.batch_ramp is not None:
            start = self.batch_ramp.start_tokens_per_step
            _check_whole("batch_ramp.start_tokens_per_step", start, self.sequence_length)
            if start > self.tokens_per_step:
                raise ValueError(
                    f"batch_ramp.start_tokens_per_step {start} exceeds tokens_per_step {self.tokens_per_step}; "
                    "a ramp goes up: exchange the two"
                )
        self.tokenizer.trainer_among(self.data.parts)
        return self

    @property
    def step_sizes(self) -> StepSizes:
        """Sequences of each step."""
        ramp = self.batch_ramp.model_dump() if self.batch_ramp is not None else None
        return step_sizes(self.tokens_per_step, self.sequence_length, ramp)

    def tokens_at(self, step: int) -> int:
        """Tokens of 0-based `step`."""
        return self.step_sizes.at(step) * self.sequence_length

    def tokens_before(self, step: int) -> int:
        """Tokens of all steps before 0-based `step`: what was seen after `step` steps."""
        return self.step_sizes.before(step) * self.sequence_length


def _check_whole(field: str, tokens: int, sequence_length: int) -> None:
    if tokens % sequence_length:
        below = tokens // sequence_length * sequence_length
        above = below + sequence_length
        multiples = f"{below} or {above}" if below else f"{above}"
        raise ValueError(f"{field} {tokens} is not a multiple of sequence_length {sequence_length}; take {multiples}")


class ProcessLayout(SpecModel):
    """How many trainer processes a run has. One process drives one accelerator, or shares the CPU."""

    nodes: PositiveInt = 1
    processes_per_node: PositiveInt = 1

    @property
    def world_size(self) -> int:
        return self.nodes * self.processes_per_node
