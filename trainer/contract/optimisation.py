"""How parameters are updated, how fast, from how many tokens, and what of the gradients travels compressed."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Annotated, Literal

from pydantic import Field

from trainer.contract.base import MAX_INT32, Fraction, NonNegativeInt, PositiveInt, SpecModel
from trainer.contract.models import ModelShape

Factor = Annotated[float, Field(ge=0.0, le=1000.0)]
LearningRate = Annotated[float, Field(gt=0.0, le=1.0)]


class MuonSpec(SpecModel):
    """Settings of Muon (Jordan et al. 2024), which updates the weight matrices of the blocks."""

    learning_rate: Annotated[LearningRate | None, Field(examples=[0.02])] = None
    """Peak learning rate of the matrices that Muon updates. Without it, `optimizer.learning_rate`."""
    momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.95
    """Decay rate of the running mean of gradients."""
    nesterov: bool = True
    """Whether to use Nesterov momentum."""
    iterations: Annotated[int, Field(ge=1, le=20)] = 5
    """Number of Newton-Schulz iterations that make an update orthogonal."""
    scale: Literal["rms", "spectral"] = "rms"
    """Multiplier of an orthogonal update of R rows and C columns. `rms` is 0.2 sqrt(max(R, C)), the size of AdamW's
    updates, so that AdamW's learning rate and weight decay fit (Liu et al. 2025, "Muon is scalable for LLM training").
    `spectral` is sqrt(max(1, R / C)), which needs a learning rate of its own, about 0.02 (Jordan et al. 2024)."""


class ParameterGroup(SpecModel):
    """Parameters with a learning rate and weight decay of their own."""

    pattern: Annotated[str, Field(min_length=1, max_length=200, examples=["blocks.*.attention.*"])]
    """Pattern of the complete parameter names of the group, with `*`, `?` and `[...]`. The job fails with the reason
    `bad_spec` if no parameter matches. With `lora` these are the names of adapter parameters."""
    learning_rate_factor: Factor = 1.0
    """Factor of the learning rate of these parameters. 0 freezes them."""
    weight_decay_factor: Annotated[Factor | None, Field(examples=[0.0])] = None
    """Factor of `weight_decay` for these parameters. Without it, a factor of 1 for matrices and 0 for norms and other
    one-dimensional parameters."""


class GradientWatchSpec(SpecModel):
    """When an event reports a large gradient, and when it is not applied. Other large gradients are clipped. Metrics of
    each layer, on request."""

    absolute: Annotated[float, Field(gt=0.0)] | None = 1e4
    """Norm of the gradient, before clipping, above which it is reported. null disables this limit."""
    relative: Annotated[float, Field(gt=1.0)] | None = 10.0
    """Multiple of the median norm of the last 128 steps above which it is reported, once there are 20. null disables
    this limit."""
    skip_sigma: Annotated[float | None, Field(gt=0.0, exclude_if=lambda value: value is None, examples=[6.0])] = None
    """Skip the update of a step if its norm is above the mean of the last 128 steps by more than this number of
    standard deviations, once there are 20 steps (counted from the start or a resume), as OLMo-core can do. Without it,
    none is skipped."""
    layers_every_steps: Annotated[
        int | None, Field(ge=10, le=MAX_INT32, exclude_if=lambda value: value is None, examples=[100])
    ] = None
    """Report, every so many steps, the norm of each layer's gradient before clipping (`layers/NAME/gradient_norm`), and
    the norm of its update divided by that of its weights (`layers/NAME/update_ratio`). In these steps each process
    copies its part of the trained parameters to host memory and back. Without it, neither is reported."""
    logits_every_steps: Annotated[
        int | None, Field(ge=10, le=MAX_INT32, exclude_if=lambda value: value is None, examples=[100])
    ] = None
    """Report, every so many steps, the largest attention logit of each layer
    (`layers/blocks/N/attention/largest_logit`): of a query and a key that it attends to, scaled and, with
    `attn_logit_softcapping`, capped, as it enters the softmax. It is that of the first micro-batch of each process
    after the step, in another forward pass. Without it, none is reported."""


class OptimizerSpec(SpecModel):
    """How parameters are updated."""

    name: Literal["adamw", "muon"] = "adamw"
    """`adamw` updates all parameters. `muon` updates the matrices of the blocks, and AdamW the rest: embedding, head,
    norms and routers."""
    learning_rate: Annotated[LearningRate | None, Field(examples=[3e-4])] = None
    """Peak learning rate, which `schedule` multiplies in each step. Without it, 2e-4 for low-rank adapters (`lora`),
    2e-5 for all weights of a base model (with `preference` 1e-5 and 1e-6), and for a new model 3e-3 up to 50 million
    parameters beside the embeddings, 1e-3 up to 500 million, 3e-4 up to 20 billion, 1.5e-4 up to 100 billion, and 8e-5
    beyond. The resolved spec has the number."""
    beta1: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
    """Decay rate of AdamW's running mean of gradients."""
    beta2: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.95
    """Decay rate of AdamW's running mean of squared gradients."""
    epsilon: Annotated[float, Field(gt=0.0)] = 1e-8
    """Number that AdamW adds to the denominator of an update to avoid division by zero."""
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.1
    """Decoupled weight decay: each step shrinks weights by the fraction learning rate x weight decay. Norms and other
    one-dimensional parameters are not decayed unless a group says so; embeddings are. 0 disables it."""
    gradient_clip: Annotated[float, Field(gt=0.0)] | None = 1.0
    """Largest norm of the gradient over all parameters and ranks; longer gradients are scaled down to it. null disables
    clipping."""
    gradient_watch: GradientWatchSpec = GradientWatchSpec()
    """When a large gradient is reported."""
    offload: bool = False
    """Whether the optimizer state stays in host memory and is copied to the device in buckets during each step. Uses
    less device memory and makes steps longer; the results are the same."""
    muon: MuonSpec = MuonSpec()
    """Settings of Muon. Ignored with the optimizer `adamw`."""
    groups: Annotated[
        list[ParameterGroup],
        Field(max_length=64, examples=[[{"pattern": "embedding.*", "learning_rate_factor": 0.5}]]),
    ] = []
    """Up to 64 groups of parameters with a learning rate or weight decay of their own. A parameter belongs to the first
    group whose pattern matches its name."""


class EmaSpec(SpecModel):
    """Exponential moving average (EMA) of the weights. After each step that is applied, the average becomes d times the
    average plus 1 - d times the weights. The averaged weights are evaluated and exported; training continues with the
    others, which checkpoints contain too."""

    decay: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.999
    """Largest decay d, about 1 - 1/n for an average over the last n steps. After n steps, d is (1 + n) / (10 + n) as
    long as that is less, so that the first weights soon count little."""


LORA_RATE, BASE_RATE = 2e-4, 2e-5
PREFERENCE_LORA_RATE, PREFERENCE_BASE_RATE = 1e-5, 1e-6
"""Of preference training: those of TRL's `DPOConfig`, and of its documentation for adapters."""
NEW_MODEL_RATES = ((50e6, 3e-3), (500e6, 1e-3), (20e9, 3e-4), (100e9, 1.5e-4), (inf, 8e-5))
"""(Parameters beside the embeddings up to which a rate is the default, the rate). Llama 3 of 8, 70 and 405 billion
parameters was trained with the last three (Grattafiori et al. 2024, table 3)."""


def default_learning_rate(num_parameters: int | None, *, adapters: bool, is_preference: bool = False) -> float:
    """Return the peak rate where none is given. `num_parameters`: of a new model, beside the embeddings; None for a
    base model, of which `adapters` or all weights are trained. `is_preference`: on pairs of answers."""
    if is_preference:
        return PREFERENCE_LORA_RATE if adapters else PREFERENCE_BASE_RATE
    if num_parameters is None:
        return LORA_RATE if adapters else BASE_RATE
    return next(rate for limit, rate in NEW_MODEL_RATES if num_parameters <= limit)


NF4_BLOCK = 64
"""Numbers of a matrix in 4 bits that share a scale."""


def nf4_bytes(numbers: int) -> int:
    """Return the bytes of so many numbers in 4 bits, and of a scale in fp32 for each block."""
    return -(-numbers // NF4_BLOCK) * (NF4_BLOCK // 2 + 4)


LoraTarget = Literal["query", "key", "value", "output", "gate", "up", "down"]


class LoraSpec(SpecModel):
    """Low-rank adapters (LoRA, Hu et al. 2021). Only the adapters are trained; the base model is frozen."""

    rank: Annotated[int, Field(ge=1, le=1024)] = 16
    """Rank of the adapter matrices."""
    alpha: Annotated[float, Field(gt=0)] = 32.0
    """Scale of the adapters: their output is multiplied by alpha / `rank`."""
    rank_stabilized: Annotated[bool, Field(exclude_if=lambda value: not value)] = False
    """Whether the output is multiplied by alpha / sqrt(`rank`) instead (rsLoRA, Kalajdzievski 2023), so that adapters
    of a high rank do not learn more slowly."""
    dropout: Annotated[float, Field(ge=0.0, lt=1.0, exclude_if=lambda value: value == 0.0)] = 0.0
    """Share of an adapter's inputs that are set to zero in training, other ones for each adapter and step; the others
    are scaled up. Evaluations and the exported model drop nothing. Refused with `cuda_graphs`."""
    targets: Annotated[list[LoraTarget], Field(min_length=1)] = [
        "query",
        "key",
        "value",
        "output",
        "gate",
        "up",
        "down",
    ]
    """Matrices of each block that get an adapter. Routed experts get none. In a model with `mla`, `query` is all
    matrices of queries, and `key` as `value` both matrices that keys and values are computed with."""
    quantization: Annotated[Literal["none", "nf4"], Field(exclude_if=lambda value: value == "none")] = "none"
    """How the frozen matrices of attention, dense feed-forward layers and shared experts are stored during training.
    `nf4` stores them in 4 bits, with a scale in fp32 for each 64 numbers (QLoRA, Dettmers et al. 2023), and computes
    with them in the `precision` of the run, which takes longer. Embeddings, head, norms and routed experts are stored
    as without it. Each data rank has all of these matrices, with any `zero`. Refused with precision `fp8`, with `mla`,
    and with `tensor` ranks where a part of a matrix's row is not a multiple of 64 numbers."""
    export: Literal["merged", "adapter"] = "merged"
    """What the job exports: `merged` is a complete model with the adapters added to its weights, `adapter` the adapters
    alone in PEFT's layout. `adapter` is refused for a mixture of experts with `gate`, `up` or `down` among the targets
    if its layers are dense or have shared experts."""

    @property
    def scale(self) -> float:
        """Return the factor of the adapters' output."""
        return self.alpha / (self.rank**0.5 if self.rank_stabilized else self.rank)

    def check_export(self, shape: ModelShape) -> None:
        """Raise ValueError for an adapter that PEFT would not put on a model of this shape: it adapts fused matrices as
        a whole, and takes what is adapted of a mixture's feed-forward layers for its routed experts."""
        fused = [target for target in self.targets if target not in ("output", "down")]
        if self.export == "adapter" and shape.fused_projections and fused:
            raise ValueError(
                f"lora.export adapter: PEFT has no adapters of {', '.join(fused)} alone, which the model's files have "
                "in fused matrices; remove them from lora.targets, or set lora.export to merged"
            )
        refused = [target for target in self.targets if target in ("gate", "up", "down")]
        if self.export == "adapter" and shape.moe is not None and shape.adapter_parameters(1, refused):
            raise ValueError(
                f"lora.export adapter: PEFT does not support adapters of {', '.join(refused)} in a mixture of experts; "
                "remove them from lora.targets, or set lora.export to merged"
            )


DEFAULT_WARMUP_STEPS, MAX_DEFAULT_WARMUP_STEPS = 20, 2000


def default_warmup(steps: int) -> int:
    """Return the steps of the warm-up of a run that names none: a fiftieth of its steps within the two limits; a fifth
    of a run that is shorter than the lower limit."""
    if steps < DEFAULT_WARMUP_STEPS:
        return steps // 5
    return min(max(DEFAULT_WARMUP_STEPS, steps // 50), MAX_DEFAULT_WARMUP_STEPS)


class ScheduleSpec(SpecModel):
    """Learning rate over the run: a linear warm-up, a constant phase, and a decay. Where warm-up and decay overlap, the
    lower rate applies."""

    name: Literal["wsd", "cosine", "constant"] = "wsd"
    """`wsd` (warmup, stable, decay) is constant until the last `decay_fraction` of the steps. `cosine` decays from the
    end of the warm-up in half a cosine. `constant` does not decay."""
    warmup_steps: NonNegativeInt = DEFAULT_WARMUP_STEPS
    """Number of steps in which the learning rate rises linearly to its peak. At most `training.steps`; 0 disables the
    warm-up. The default is 2 % of the steps, at least 20 and at most 2,000; in a run of fewer than 20 steps a fifth of
    them. The resolved spec has the number."""
    decay_fraction: Fraction = 0.2
    """Last part of the run in which `wsd` decays, as a fraction of the steps, from 0 to 1. Ignored by `cosine` and
    `constant`."""
    decay_shape: Literal["linear", "sqrt", "cosine"] = "linear"
    """Shape of the decay of `wsd`. `sqrt` is steep first: 1 - sqrt of the part done (Haegele et al. 2024). Ignored by
    `cosine` and `constant`."""
    final_fraction: Fraction = 0.05
    """Learning rate of the last step, as a fraction of the peak, from 0 to 1. Ignored by `constant`."""


class BatchRamp(SpecModel):
    """A batch size that grows linearly, rounded down to complete sequences, to `tokens_per_step`."""

    start_tokens_per_step: Annotated[PositiveInt, Field(examples=[4096])]
    """Batch size of the first step, in tokens. A multiple of `sequence_length`, at most `tokens_per_step`, and at least
    one sequence for each data rank."""
    steps: Annotated[PositiveInt, Field(examples=[200])]
    """Number of steps until the batch size reaches `tokens_per_step`."""


class CompressionSpec(SpecModel):
    """Compression of gradients that are exchanged between replicas. Within a replica they are never compressed. The
    error of a step is added to the gradients of the next."""

    kind: Literal["none", "powersgd", "int8", "fp8"] = "none"
    """`int8` and `fp8` send one byte for each number, and a scale for each block of numbers. `powersgd` sends two
    low-rank factors for each matrix of a block (Vogels et al. 2019), and as `int8` the embedding, the head and what
    factors would not make smaller. Norms and other one-dimensional parameters are not compressed. Without replicas it
    has no effect."""
    rank: Annotated[int, Field(ge=1, le=1024)] = 8
    """Rank of the factors that `powersgd` sends. Ignored by the other kinds."""
    start_step: NonNegativeInt = 0
    """Number of steps at the start of the run in which gradients are not compressed."""


@dataclass(frozen=True)
class BatchSizeSchedule:
    """The batch size of each step in sequences, over all data ranks: a linear ramp from `start` to `full` over
    `ramp_steps` steps, then `full`. Steps count from 0."""

    full: int
    start: int = 0
    ramp_steps: int = 0

    def sequences_at(self, step: int) -> int:
        """Return the batch size of a step in sequences; steps count from 0."""
        if step >= self.ramp_steps:
            return self.full
        return self.start + (self.full - self.start) * step // self.ramp_steps

    def sequences_before(self, step: int) -> int:
        """Return the number of sequences in all earlier steps, in time logarithmic in the step."""
        ramped = min(step, self.ramp_steps)
        climbed = _floor_sum(ramped, self.full - self.start, self.ramp_steps) if ramped else 0
        return ramped * self.start + climbed + (step - ramped) * self.full

    @property
    def smallest(self) -> int:
        """Return the smallest batch size in sequences."""
        return self.start if self.ramp_steps else self.full


def batch_size_schedule(
    tokens_per_step: int, sequence_length: int, batch_ramp: Mapping[str, int] | None
) -> BatchSizeSchedule:
    """Return the schedule that follows from fields of a training spec, in the form in which they are stored."""
    full = tokens_per_step // sequence_length
    if batch_ramp is None:
        return BatchSizeSchedule(full)
    return BatchSizeSchedule(full, batch_ramp["start_tokens_per_step"] // sequence_length, batch_ramp["steps"])


def _floor_sum(count: int, slope: int, divisor: int) -> int:
    """Sum of floor(slope * i / divisor) over 0 <= i < count.

    Points of the integer grid under a line: complete rows are counted together, and what is left is the same question
    with axes exchanged, as in Euclid's algorithm.
    """
    offset, total = 0, 0
    while count:
        total += count * (count - 1) // 2 * (slope // divisor) + count * (offset // divisor)
        slope, offset = slope % divisor, offset % divisor
        top = slope * count + offset
        count, offset, slope, divisor = top // divisor, top % divisor, divisor, slope
    return total
