"""What a run computes: the part of a job spec that the trainer reads.

Everything here changes the numbers of a run or the cost of a step; where a run is placed, who owns it and how often it
may be retried are the platform's (`athanor.specs`).
"""

from bisect import bisect_left
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from trainer.contract.base import CheckedModel, FieldConflict, PositiveInt, SpecModel
from trainer.contract.data import DataSpec, PrepareSpec, SequenceLength, TokenizerSpec
from trainer.contract.models import MODELS, ModelShape
from trainer.contract.optimisation import (
    BatchRamp,
    BatchSizeSchedule,
    EmaSpec,
    LoraSpec,
    OptimizerSpec,
    ScheduleSpec,
    batch_size_schedule,
    default_learning_rate,
    default_warmup,
)
from trainer.contract.parallelism import SPLIT_BACKWARD, ParallelismSpec
from trainer.contract.preference import PreferenceSpec
from trainer.contract.rollback import RollbackSpec

MAX_SEED = 2**63 - 1


PresetName = Literal["llama-1m", "llama-10m", "llama-100m", "llama-1b", "llama-8b", "llama-70b", "llama-405b", "moe-1m"]


class ModelSpec(CheckedModel):
    """The model to train: give one of `preset`, `shape` and `base`; with `weights: random`, a `base` and perhaps
    another shape."""

    preset: PresetName | None = None
    """Name of a built-in model shape. Its weights start from random values."""
    shape: ModelShape | None = None
    """Dimensions of a model that is no preset. Its weights start from random values. With `base` it can be left out; if
    given, it must equal the shape of the base model."""
    base: Annotated[
        Annotated[str, Field(min_length=1, max_length=1000)] | None, Field(examples=["model:llama-1m-baseline"])
    ] = None
    """Trained model to start from: `model:NAME` (the newest model of the team with this name), `model:NAME@ALIAS` or
    `model:NAME@NUMBER` (a registered version), `model:OWNER/NAME@ALIAS` (one of a model that team OWNER shares),
    `model:art_...` (one model by its id), or `s3://bucket/prefix` with a model in Hugging Face's layout, in a bucket
    that an administrator has granted to the team. In a standalone run, a folder. Shape and tokenizer come with it. What
    it refers to is fixed when the job is submitted."""
    weights: Annotated[Literal["base", "random"], Field(exclude_if=lambda value: value == "base")] = "base"
    """What training with a `base` starts from: `base` its weights; `random` a new model, which takes over the tokenizer
    and, unless `preset` or `shape` sets a different one, the shape."""

    def _conflicts(self) -> Iterator[FieldConflict]:
        if self.base is None and self.weights == "random":
            yield FieldConflict("weights", "weights `random` belongs to a base; every other model is new: leave it out")
        if self.base is not None and self.preset is not None and (self.weights == "base" or self.shape is not None):
            yield FieldConflict("", "base comes with its own shape; give either preset or base")
        if self.base is None and (self.preset is None) == (self.shape is None):
            yield FieldConflict("", "give exactly one of preset and shape, or base to start from a trained model")

    @property
    def has_own_shape(self) -> bool:
        """Whether the shape is known without the base."""
        return self.shape is not None or self.preset is not None

    @property
    def is_new(self) -> bool:
        """Whether training starts from random weights."""
        return self.base is None or self.weights == "random"

    def resolve(self) -> ModelShape:
        """Of a base it is known once `TrainingSpec.with_base` has filled it in."""
        if self.shape is not None:
            return self.shape
        assert self.preset is not None, f"base {self.base} was not looked up"
        return MODELS[self.preset]


class EvaluationSpec(SpecModel):
    """Evaluation on held-out data, before the first step, at an interval, and after the last step."""

    every_steps: PositiveInt = 100
    """Interval between evaluations, in steps."""
    patience: Annotated[PositiveInt | None, Field(examples=[3])] = None
    """Number of evaluations in a row without a lower loss after which training ends early, with a checkpoint, and with
    the model of that step or, with `checkpoint.keep_best`, the best one. Without it, training runs all steps."""
    sequences: PositiveInt = 64
    """Number of validation sequences of each data set that the loss is computed on. Fewer if the data set has fewer."""
    prompts: Annotated[
        list[Annotated[str, Field(max_length=2000)]], Field(max_length=16, examples=[["def main("]])
    ] = []
    """Up to 16 texts of at most 2,000 characters that the model continues at each evaluation, as a sample of its
    output. Sampling uses the same seed each time, and a temperature of 0.8. If all data has the format `chat`, each is
    put to the model as a message of the user."""
    sample_tokens: Annotated[int, Field(ge=1, le=1024)] = 64
    """Largest number of tokens to generate for each of `prompts`; never more than `sequence_length` - 1 tokens.
    Generation ends earlier at the end of the text."""


class CheckpointPolicy(SpecModel):
    """When checkpoints are saved. One is also saved after the last step, and when the job is asked to pause or stop."""

    every_steps: PositiveInt = 100
    """Interval between checkpoints, in steps. A job that fails resumes from the newest one."""
    every_minutes: Annotated[
        Annotated[float, Field(gt=0.0, le=10_080.0)] | Literal["auto"] | None,
        Field(examples=["auto"], exclude_if=lambda value: value is None),
    ] = None
    """Longest time between checkpoints, in minutes of training: one is also saved after the first step that ends later
    than that after the last save. By the clock of the first rank. `auto`: the time that loses the least to saves and
    failures together, by what saves have cost this run and how often jobs of this size fail in the pool, a day at
    most; 10 minutes until the first save is measured. The job's timeline has the chosen interval. `every_steps` applies
    as well: set it to more than `steps` for checkpoints by time alone."""
    shadow_every_steps: Annotated[
        PositiveInt | Literal["auto", "none"], Field(examples=[1], exclude_if=lambda value: value == "auto")
    ] = "auto"
    """Interval between shadow checkpoints, in steps: each process copies its state to the memory of its node, and a
    restart in place continues from there. Two copies are held, so a node needs twice the state of its processes. In a
    run with `spare_nodes` or `min_nodes`, copies are also sent to another node, from which a spare node, or the nodes
    that are left, continue: six are held then.
    `auto`: as often as copies complete, and cost at most 3 % of the time; without shadow checkpoints if the node has
    too little memory available. `none`: none."""
    keep_last: PositiveInt = 2
    """Number of newest checkpoints to retain. Registering a new one retires the older ones, which are then deleted."""
    keep_every_steps: Annotated[
        PositiveInt | None, Field(examples=[10_000], exclude_if=lambda value: value is None)
    ] = None
    """Interval between milestones, in steps: after each multiple of it a checkpoint is saved, which is retained beside
    the newest ones until it is deleted. They count towards the team's stored bytes."""
    keep_best: Annotated[bool, Field(exclude_if=lambda value: not value)] = False
    """Whether the checkpoint with the lowest loss on held-out data is retained too, and the model exported from it.
    Each evaluation after a step with a lower loss than all before is followed by a checkpoint. If none is lower than
    that before the first step, the model is that of the last step."""

    def is_milestone(self, step: int) -> bool:
        """Return whether the checkpoint after `step` steps is retained as a milestone."""
        return self.keep_every_steps is not None and step > 0 and step % self.keep_every_steps == 0


class TrainingSpec(CheckedModel):
    """What to train, on which data, and how."""

    model: Annotated[ModelSpec, Field(examples=[{"preset": "llama-1m"}])]
    """The model to train: a preset, a shape or a base model."""
    data: Annotated[DataSpec, Field(examples=[{"source": "builtin:python-stdlib"}])]
    """The text to train on, and how it becomes sequences."""
    tokenizer: TokenizerSpec = TokenizerSpec()
    """How text becomes tokens. Leave it out with `model.base`, which brings its own tokenizer."""
    steps: Annotated[PositiveInt, Field(examples=[1000])]
    """Number of optimizer steps of the whole run, including the steps before a resume. With `epochs`, the largest
    number."""
    epochs: Annotated[float | None, Field(gt=0.0, examples=[3.0], exclude_if=lambda value: value is None)] = None
    """Passes over the training data after which the run ends, if these take fewer than `steps` steps. The schedule is
    then that of the shorter run, with at most a fifth of it as warm-up. The number of steps is known, and written to
    the resolved spec, once the data is prepared; plans before that count `steps`. Needs a single data source."""
    tokens_per_step: Annotated[PositiveInt, Field(examples=[16_384])]
    """Global batch size: tokens of one step over all data ranks and micro-batches. Must be a multiple of
    `sequence_length`, and give every data rank at least one sequence."""
    sequence_length: Annotated[SequenceLength, Field(examples=[256])]
    """Length of a training sequence, in tokens."""
    optimizer: OptimizerSpec = OptimizerSpec()
    """Optimizer, learning rate and weight decay."""
    schedule: ScheduleSpec = ScheduleSpec()
    """How the learning rate changes over the run."""
    lora: LoraSpec | None = None
    """Train low-rank adapters instead of all weights. Needs `model.base`."""
    preference: Annotated[
        PreferenceSpec | None, Field(examples=[{"loss": "dpo"}], exclude_if=lambda value: value is None)
    ] = None
    """Train on pairs of a chosen and a rejected answer, or on answers with a label. Without it, on text."""
    ema: Annotated[EmaSpec | None, Field(examples=[{"decay": 0.999}], exclude_if=lambda value: value is None)] = None
    """Average the weights over the run, evaluate and export the average. Takes the memory of one more copy of the
    trained weights in fp32, sharded as they are. Without it, the weights of the last step are."""
    batch_ramp: BatchRamp | None = None
    """Start with smaller batches and grow to `tokens_per_step`. Without it all steps have the same size."""
    z_loss: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """Weight of the z-loss, which adds the squared logarithm of the softmax denominator to the training loss (Chowdhery
    et al. 2022, section 5). 0 disables it. Evaluation does not include it."""
    precision: Literal["auto", "fp32", "bf16", "fp8"] = "auto"
    """Number format of the forward and backward pass. Weights and optimizer state are always fp32. `auto` is bf16 on
    GPUs that have it (compute capability 8.0 or higher) and fp32 elsewhere; the resolved spec and the job's timeline
    name it. On GPUs the matrix products of `fp32` are rounded to TF32. `fp8` applies to the
    matrix products of attention and of dense feed-forward layers whose dimensions are multiples of 16; everything else
    is then bf16. It needs the extra `fp8` (torchao) on the nodes, and is emulated on CPUs and on GPUs below compute
    capability 8.9."""
    gradient_reduction: Literal["fp32", "bf16"] = "fp32"
    """Number format in which gradients are summed over data ranks. `bf16` halves the traffic and rounds the sums."""
    activation_checkpointing: Literal["none", "selective", "full"] = "none"
    """Which activations are recomputed in the backward pass to save memory: `none`; `selective`, all but matrix
    products, attention and what came over the network; or `full`, everything but the input of each layer."""
    recompute_layers: Annotated[PositiveInt | None, Field(examples=[8])] = None
    """Number of layers, evenly distributed over the model, that `activation_checkpointing` applies to. Without it, all
    layers. Refused with `activation_checkpointing` `none`."""
    parallelism: ParallelismSpec = ParallelismSpec()
    """How the processes divide the work."""
    evaluation: EvaluationSpec = EvaluationSpec()
    """Held-out loss and sample output during training."""
    rollback: Annotated[RollbackSpec, Field(exclude_if=lambda value: value == RollbackSpec())] = RollbackSpec()
    """When the run goes back to an earlier checkpoint because its loss has diverged."""
    compile: bool | Literal["auto"] = "auto"
    """Whether to compile the blocks of the model with `torch.compile`, which makes start-up longer. `auto` compiles
    them on GPUs, and continues without what fails to compile; blocks that cannot be compiled, such as recomputed ones
    with ring attention, are reported by an event. True is refused with the pipeline schedules
    `interleaved_zero_bubble`, `zbv_zero_bubble` and `dualpipe_v`, with which `auto` does not compile."""
    cuda_graphs: bool = False
    """Whether to record the compiled blocks as CUDA graphs, which saves the time to launch kernels one by one. Needs
    `compile`; refused with a mixture of experts, pipeline, tensor or context parallelism, `zero` above 0, `batch_ramp`
    or `evaluation.prompts`. Without a CUDA device it has no effect."""
    deterministic: bool = False
    """Whether to use only operations that compute the same bits each time, on GPUs too, where sums of attention's
    backward pass and of scattered values otherwise depend on timing. These operations are slower and take more memory
    on GPUs, and one that has no such form ends the job with its name. CPU runs are the same without it."""
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] = 1
    """Seed of the initial weights and of the order of the data."""

    @model_validator(mode="before")
    @classmethod
    def _choose_warmup(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        steps, schedule = data.get("steps"), data.get("schedule", {})
        if not isinstance(steps, int) or steps < 1 or not isinstance(schedule, dict) or "warmup_steps" in schedule:
            return data
        return {**data, "schedule": {**schedule, "warmup_steps": default_warmup(steps)}}

    @model_validator(mode="after")
    def _choose_learning_rate(self) -> Self:
        is_known = not self.model.is_new or self.model.has_own_shape  # else once the base is looked up
        if self.optimizer.learning_rate is None and is_known:
            new = self.model.resolve().num_parameters(vocab_size=0) if self.model.is_new else None
            is_preference = self.preference is not None
            rate = default_learning_rate(new, adapters=self.lora is not None, is_preference=is_preference)
            self.__dict__["optimizer"] = self.optimizer.model_copy(update={"learning_rate": rate})
        return self

    @property
    def peak_learning_rate(self) -> float:
        """Return the learning rate that the schedule multiplies."""
        assert self.optimizer.learning_rate is not None, "chosen when the spec was validated"
        return self.optimizer.learning_rate

    def _conflicts(self) -> Iterator[FieldConflict]:
        yield from _remainder("tokens_per_step", self.tokens_per_step, self.sequence_length)
        if self.recompute_layers is not None and self.activation_checkpointing == "none":
            message = "recompute_layers needs activation_checkpointing selective or full"
            yield FieldConflict("recompute_layers", message, ("activation_checkpointing",))
        if self.epochs is not None and len(self.data.parts) > 1:
            message = (
                "epochs counts passes over one source, and data.mixture has several; leave epochs out and set steps"
            )
            yield FieldConflict("epochs", message, ("data.mixture",))
        if self.schedule.warmup_steps > self.steps:
            message = f"warmup_steps {self.schedule.warmup_steps} exceeds steps {self.steps}"
            yield FieldConflict("schedule.warmup_steps", message, ("steps",))
        if self.batch_ramp is not None:
            field, start = "batch_ramp.start_tokens_per_step", self.batch_ramp.start_tokens_per_step
            yield from _remainder(field, start, self.sequence_length)
            if start > self.tokens_per_step:
                message = (
                    f"{field} {start} exceeds tokens_per_step {self.tokens_per_step}; a ramp goes up: exchange the two"
                )
                yield FieldConflict(field, message, ("tokens_per_step",))
        yield from self.tokenizer.conflicts_with(self.data)
        yield from self._base_conflicts()
        yield from self._preference_conflicts()

    def _preference_conflicts(self) -> Iterator[FieldConflict]:
        formats = sorted({part.format for part in self.data.parts})
        if self.preference is None:
            for form, trained_on, loss in (
                ("preference", "pairs", "dpo"),
                ("unpaired", "labelled answers", "kto"),
            ):
                if form in formats:
                    message = (
                        f"data.format {form} belongs to training on {trained_on}; set preference, for example "
                        f"{{loss: {loss}}}"
                    )
                    yield FieldConflict("preference", message, ("data.format", "data.mixture"))
            return
        needed = self.preference.data_format
        if formats != [needed]:
            message = (
                f"preference with loss {self.preference.loss} needs data.format {needed}, and it is "
                f"{', '.join(formats)}; set it to {needed}"
            )
            yield FieldConflict("data.mixture" if self.data.mixture else "data.format", message, ("preference",))
        if self.model.is_new:
            message = "preference trains a model that answers already; name it in model.base, without model.weights"
            yield FieldConflict("preference", message, ("model",))
        if self.preference.reference == "precomputed" and self.data.on_corrupt == "skip":
            message = (
                "preference.reference precomputed needs the same sequences in each step, and data.on_corrupt skip "
                "replaces those of damaged shards; set it to fail, or reference to live"
            )
            yield FieldConflict("preference.reference", message, ("data.on_corrupt",))
        if self.z_loss:
            message = f"z_loss {self.z_loss:g} is a part of the loss of text; leave it out with preference"
            yield FieldConflict("z_loss", message, ("preference",))

    def _base_conflicts(self) -> Iterator[FieldConflict]:
        if self.tokenizer.kind == "model" and self.model.base is None:
            yield FieldConflict("tokenizer.kind", "tokenizer.kind `model` needs model.base", ("model",))
        pad = None if self.model.shape is None else self.model.shape.pad_token_id
        if pad is not None and pad >= self.tokenizer.vocab_size:
            message = f"pad_token_id {pad} is not below tokenizer.vocab_size {self.tokenizer.vocab_size}; lower it"
            yield FieldConflict("model.shape.pad_token_id", message, ("tokenizer.vocab_size",))
        if self.lora is not None and self.model.is_new:
            message = "lora adapts a trained model; name it in model.base, and leave model.weights out"
            yield FieldConflict("lora", message, ("model",))
        if self.lora is not None and self.has_quantized_base and self.precision == "fp8":
            message = (
                f"lora.quantization {self.lora.quantization} has no fp8 products: its matrices are dequantized to bf16 "
                "or fp32; set precision to bf16, or lora.quantization to none"
            )
            yield FieldConflict("lora.quantization", message, ("precision",))
        if self.has_quantized_base and self.model.shape is not None and self.model.shape.mla is not None:
            message = "lora.quantization nf4 is not supported for a model with mla; set it to none"
            yield FieldConflict("lora.quantization", message, ("model.shape.mla",))
        if self.lora is not None and self.model.shape is not None:
            try:
                self.lora.check_export(self.model.shape)
            except ValueError as error:
                yield FieldConflict("lora.export", str(error), ("lora.targets", "model.shape"))
        if self.model.base is not None and self.tokenizer.kind != "model" and self.tokenizer != TokenizerSpec():
            yield FieldConflict(
                "tokenizer", "model.base comes with its own tokenizer; leave tokenizer out", ("model.base",)
            )

    def with_base(self, base: str, shape: ModelShape, vocab_size: int, tokenizer_digest: str) -> "TrainingSpec":
        """With all that follows from `model.base`, now known as `base`. Raises ValueError for a shape that differs."""
        if self.model.weights == "random":
            shape = self.model.resolve() if self.model.has_own_shape else shape
        elif self.model.shape is not None and self.model.shape != shape:
            raise ValueError("model.shape is not that of model.base; leave shape out, or set model.weights to random")
        model = {"base": base, "shape": shape.model_dump(), "weights": self.model.weights}
        tokenizer = {"kind": "model", "vocab_size": vocab_size, "digest": tokenizer_digest}
        return TrainingSpec.model_validate({**self.model_dump(), "model": model, "tokenizer": tokenizer})

    def check_text_part(self) -> None:
        """Raise ValueError if the text part of a base model for images and text cannot be trained so."""
        if self.lora is not None and self.lora.export == "adapter":
            raise ValueError(
                "lora.export adapter: the base is a model for images and text, of which the text part is trained and "
                "exported as a model of its own; set lora.export to merged"
            )

    @property
    def batch_size_schedule(self) -> BatchSizeSchedule:
        """Return the batch size of each step in sequences. `tokens_at` has it in tokens."""
        ramp = self.batch_ramp.model_dump() if self.batch_ramp is not None else None
        return batch_size_schedule(self.tokens_per_step, self.sequence_length, ramp)

    def with_epochs(self, num_sequences: int) -> Self:
        """Return the spec with the steps that `epochs` passes over `num_sequences` training sequences take, each
        complete, if these are fewer than `steps`."""
        if self.epochs is None:
            return self
        sequences_before = self.batch_size_schedule.sequences_before
        steps = bisect_left(range(self.steps), self.epochs * num_sequences, lo=1, key=sequences_before)
        if steps >= self.steps:
            return self
        schedule = self.schedule.model_copy(update={"warmup_steps": min(self.schedule.warmup_steps, steps // 5)})
        return self.model_copy(update={"steps": steps, "schedule": schedule})

    def flops_per_token(self, vocab_size: int, *, causal: bool) -> int:
        """Return the training FLOPs of one token (`ModelShape.flops_per_token`). `model` is resolved."""
        shape = self.model.resolve()
        adapters = None if self.lora is None else shape.adapter_parameters(self.lora.rank, self.lora.targets)
        passes = 0 if self.preference is None else self.preference.forward_passes
        return shape.flops_per_token(
            vocab_size, self.sequence_length, causal=causal, trained_adapters=adapters, forward_passes=passes
        )

    @property
    def has_reference(self) -> bool:
        """Return whether the loss compares the model with the base model."""
        return self.preference is not None and self.preference.has_reference

    @property
    def holds_reference(self) -> bool:
        """Return whether each process holds the weights of the base model beside those that are trained."""
        return self.preference is not None and self.preference.has_live_reference and self.lora is None

    @property
    def has_quantized_base(self) -> bool:
        """Return whether the frozen matrices of the blocks are in 4 bits."""
        return self.lora is not None and self.lora.quantization != "none"

    @property
    def computes_in_bf16(self) -> bool:
        """Return whether the forward and backward pass use bf16 (fp8 is part of them). `auto` that is not resolved is
        fp32."""
        return self.precision in ("bf16", "fp8")

    def with_precision(self, *, has_bf16: bool) -> "TrainingSpec":
        """Return the spec with `auto` replaced by what devices with or without bf16 compute in."""
        if self.precision != "auto":
            return self
        return self.model_copy(update={"precision": "bf16" if has_bf16 else "fp32"})

    def with_compile(self, *, on_gpu: bool) -> "TrainingSpec":
        """Return the spec with `compile: auto` replaced by what the devices and the pipeline schedule allow."""
        if self.compile != "auto":
            return self
        compiles = on_gpu and self.parallelism.pipeline_schedule not in SPLIT_BACKWARD
        return self.model_copy(update={"compile": compiles})

    def tokens_at(self, step: int) -> int:
        """Return the tokens of 0-based `step`, over all ranks."""
        return self.batch_size_schedule.sequences_at(step) * self.sequence_length

    def tokens_before(self, step: int) -> int:
        """Return the tokens of all steps before 0-based `step`."""
        return self.batch_size_schedule.sequences_before(step) * self.sequence_length


def _remainder(field: str, tokens: int, sequence_length: int) -> Iterator[FieldConflict]:
    """Yield a conflict if the tokens of a step are not complete sequences."""
    if tokens % sequence_length:
        below = tokens // sequence_length * sequence_length
        above = below + sequence_length
        multiples = f"{below} or {above}" if below else f"{above}"
        message = f"{field} {tokens} is not a multiple of sequence_length {sequence_length}; take {multiples}"
        yield FieldConflict(field, message, ("sequence_length",))


class OneTask:
    """Mixed into what names a task: either `training` or `prepare`, which only prepares data."""

    if TYPE_CHECKING:  # pydantic would put the fields of a mixin first
        training: TrainingSpec | None
        prepare: PrepareSpec | None

    @property
    def task(self) -> TrainingSpec | PrepareSpec:
        """Return the training or the preparation."""
        task = self.training or self.prepare
        assert task is not None, "neither training nor prepare"
        return task

    @property
    def data(self) -> DataSpec:
        """Return the data of the task."""
        return self.task.data

    @property
    def tokenizer(self) -> TokenizerSpec:
        """Return the tokenizer of the task."""
        return self.task.tokenizer


class ProcessLayout(SpecModel):
    """The number of trainer processes of a run. One process drives one accelerator, or shares the CPU."""

    nodes: PositiveInt = 1
    """Number of nodes to train on. A cluster of kind `local` has 1."""
    processes_per_node: PositiveInt = 1
    """Number of trainer processes, and so of slots, on each node. On a pool with accelerators each process uses one.
    More processes than the nodes have slots share them, with a warning."""

    @property
    def world_size(self) -> int:
        """Return the number of ranks."""
        return self.nodes * self.processes_per_node
