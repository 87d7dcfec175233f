"""What a run computes: the part of a job spec that the trainer reads.

Everything here changes the numbers of a run or the cost of a step; where a run is placed, who owns it
and how often it may be retried are the platform's (`athanor.specs`).
"""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from trainer.contract.base import PositiveInt, SpecModel
from trainer.contract.data import DataSpec, PrepareSpec, TokenizerSpec
from trainer.contract.models import MODELS, ModelShape
from trainer.contract.optimisation import BatchRamp, LoraSpec, OptimizerSpec, ScheduleSpec, StepSizes, step_sizes
from trainer.contract.parallelism import ParallelismSpec

LARGEST_SEED = 2**63 - 1


PresetName = Literal["llama-1m", "llama-10m", "llama-100m", "llama-1b", "llama-8b", "llama-70b", "llama-405b", "moe-1m"]


class ModelSpec(SpecModel):
    """A named shape (`preset`), a shape of one's own (`shape`), or a trained model to go on from (`base`).

    `base` is `model:NAME` (the team's newest of that name) or `model:art_...`, or `s3://bucket/prefix` with a model in
    Hugging Face's layout; in a standalone run a folder. Its shape and its tokenizer come with it.
    """

    preset: PresetName | None = None
    shape: ModelShape | None = None
    base: Annotated[str, Field(min_length=1, max_length=1000)] | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> "ModelSpec":
        if self.base is not None and self.preset is not None:
            raise ValueError("base comes with its own shape; give either preset or base")
        if self.base is None and (self.preset is None) == (self.shape is None):
            raise ValueError("give either preset or shape, not both and not neither; or base, to go on from a model")
        return self

    def resolve(self) -> ModelShape:
        """Of a base it is known once `TrainingSpec.with_base` has filled it in."""
        if self.shape is not None:
            return self.shape
        assert self.preset is not None, f"base {self.base} was not looked up"
        return MODELS[self.preset]


class EvaluationSpec(SpecModel):
    """Held-out loss over `sequences` validation sequences of each data set: before the first step, every `every_steps`,
    at the end. Each time the model also goes on from `prompts`, by up to `sample_tokens` tokens, drawn with the same
    random numbers; not where pipeline, tensor or context parallelism spread it."""

    every_steps: PositiveInt = 100
    sequences: PositiveInt = 64
    prompts: Annotated[list[Annotated[str, Field(max_length=2000)]], Field(max_length=16)] = []
    sample_tokens: Annotated[int, Field(ge=1, le=1024)] = 64


class CheckpointPolicy(SpecModel):
    """When state becomes durable. A checkpoint is always written on a stop request and at the end."""

    every_steps: PositiveInt = 100
    keep_last: PositiveInt = 2


class TrainingSpec(SpecModel):
    """What is trained, on what, how.

    `precision` is what the model computes in; weights and moments are fp32 always. `gradient_reduction`: in what
    gradients are summed over data ranks. `activation_checkpointing`: `full` keeps each layer's input and computes the
    layer again in the backward pass, `selective` keeps its matrix products and attention too; with `recompute_layers`
    only so many layers, evenly spread, do that. `cuda_graphs` records compiled blocks and replays them, which saves the
    time in which a CPU starts kernels one by one; without a CUDA device it does nothing.
    """

    model: ModelSpec
    data: DataSpec
    tokenizer: TokenizerSpec = TokenizerSpec()
    steps: PositiveInt
    tokens_per_step: PositiveInt
    sequence_length: Annotated[int, Field(ge=8, le=1_048_576)]
    optimizer: OptimizerSpec = OptimizerSpec()
    schedule: ScheduleSpec = ScheduleSpec()
    lora: LoraSpec | None = None
    batch_ramp: BatchRamp | None = None
    z_loss: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    precision: Literal["fp32", "bf16", "fp8"] = "fp32"
    gradient_reduction: Literal["fp32", "bf16"] = "fp32"
    activation_checkpointing: Literal["none", "selective", "full"] = "none"
    recompute_layers: PositiveInt | None = None
    parallelism: ParallelismSpec = ParallelismSpec()
    evaluation: EvaluationSpec = EvaluationSpec()
    compile: bool = False
    cuda_graphs: bool = False
    seed: Annotated[int, Field(ge=0, le=LARGEST_SEED)] = 1

    @model_validator(mode="after")
    def _whole_sequences(self) -> "TrainingSpec":
        _check_whole("tokens_per_step", self.tokens_per_step, self.sequence_length)
        if self.recompute_layers is not None and self.activation_checkpointing == "none":
            raise ValueError("recompute_layers needs activation_checkpointing selective or full")
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

    @model_validator(mode="after")
    def _fits_base(self) -> "TrainingSpec":
        if self.tokenizer.kind == "model" and self.model.base is None:
            raise ValueError("tokenizer.kind `model` is that of model.base, which is missing")
        if self.lora is not None and self.model.base is None:
            raise ValueError("lora adapts a trained model; name it in model.base")
        if self.lora is not None and self.model.shape is not None:
            self.lora.check_export(self.model.shape)
        if self.model.base is not None and self.tokenizer.kind != "model" and self.tokenizer != TokenizerSpec():
            raise ValueError("model.base comes with its own tokenizer; leave tokenizer out")
        return self

    def with_base(self, base: str, shape: ModelShape, vocab_size: int, tokenizer_digest: str) -> "TrainingSpec":
        """With all that follows from `model.base`, now known as `base`. Raises ValueError for a shape that differs."""
        if self.model.shape is not None and self.model.shape != shape:
            raise ValueError("model.shape is not that of model.base; leave shape out")
        model = {"base": base, "shape": shape.model_dump()}
        tokenizer = {"kind": "model", "vocab_size": vocab_size, "digest": tokenizer_digest}
        return TrainingSpec.model_validate({**self.model_dump(), "model": model, "tokenizer": tokenizer})

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


class OneTask:
    """Mixed into what names a task: either `training` or `prepare`, which only prepares data."""

    if TYPE_CHECKING:  # pydantic would put the fields of a mixin first
        training: TrainingSpec | None
        prepare: PrepareSpec | None

    @property
    def task(self) -> TrainingSpec | PrepareSpec:
        task = self.training or self.prepare
        assert task is not None, "neither training nor prepare"
        return task

    @property
    def data(self) -> DataSpec:
        return self.task.data

    @property
    def tokenizer(self) -> TokenizerSpec:
        return self.task.tokenizer


class ProcessLayout(SpecModel):
    """How many trainer processes a run has. One process drives one accelerator, or shares the CPU."""

    nodes: PositiveInt = 1
    processes_per_node: PositiveInt = 1

    @property
    def world_size(self) -> int:
        return self.nodes * self.processes_per_node
