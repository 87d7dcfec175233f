"""What a run computes: the part of a job spec that the trainer reads.

Everything here changes the numbers of a run or the cost of a step; where a run is placed, who owns it
and how often it may be retried are the platform's (`athanor.specs`).
"""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from trainer.contract.base import SpecModel
from trainer.contract.data import DataSpec, TokenizerSpec
from trainer.contract.models import MODELS, ModelShape

PositiveInt = Annotated[int, Field(ge=1)]
CountOrZero = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
LARGEST_SEED = 2**63 - 1


class ModelSpec(SpecModel):
    """A named shape (`preset`) or a shape of one's own (`shape`); exactly one of the two."""

    preset: Literal["llama-1m", "llama-10m", "llama-100m", "llama-1b", "llama-8b", "llama-70b", "llama-405b"] | None = (
        None
    )
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


class OptimizerSpec(SpecModel):
    name: Literal["adamw"] = "adamw"
    learning_rate: Annotated[float, Field(gt=0.0, le=1.0)] = 3e-3
    beta1: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
    beta2: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.95
    epsilon: Annotated[float, Field(gt=0.0)] = 1e-8
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.1
    gradient_clip: Annotated[float, Field(gt=0.0)] | None = 1.0


class ScheduleSpec(SpecModel):
    """Warmup-stable-decay: linear up over `warmup_steps`, flat, then linear down to `final_fraction` of the rate
    over the last `decay_fraction` of the steps."""

    name: Literal["wsd"] = "wsd"
    warmup_steps: CountOrZero = 20
    decay_fraction: Fraction = 0.2
    final_fraction: Fraction = 0.05


class ParallelismSpec(SpecModel):
    """How the ranks divide the work. This version has the data axis: every rank holds 1/`data` of the
    parameters (FSDP2)."""

    data: PositiveInt | Literal["auto"] = "auto"
    micro_batch_sequences: PositiveInt | Literal["auto"] = "auto"
    reshard_after_forward: bool = True


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
    precision: Literal["fp32", "bf16"] = "fp32"
    activation_checkpointing: Literal["none", "full"] = "none"
    parallelism: ParallelismSpec = ParallelismSpec()
    evaluation: EvaluationSpec = EvaluationSpec()
    compile: bool = False
    seed: Annotated[int, Field(ge=0, le=LARGEST_SEED)] = 1

    @model_validator(mode="after")
    def _whole_sequences(self) -> "TrainingSpec":
        if self.tokens_per_step % self.sequence_length:
            raise ValueError(
                f"tokens_per_step {self.tokens_per_step} is not a multiple of sequence_length "
                f"{self.sequence_length}; take {self._multiples()}"
            )
        if self.schedule.warmup_steps > self.steps:
            raise ValueError(f"schedule.warmup_steps {self.schedule.warmup_steps} exceeds steps {self.steps}")
        return self

    def _multiples(self) -> str:
        below = self.tokens_per_step // self.sequence_length * self.sequence_length
        above = below + self.sequence_length
        return f"{below} or {above}" if below else f"{above}"

    @property
    def sequences_per_step(self) -> int:
        return self.tokens_per_step // self.sequence_length


class ProcessLayout(SpecModel):
    """How many trainer processes a run has. One process drives one accelerator, or shares the CPU."""

    nodes: PositiveInt = 1
    processes_per_node: PositiveInt = 1

    @property
    def world_size(self) -> int:
        return self.nodes * self.processes_per_node
