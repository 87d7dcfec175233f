"""How parameters are updated, how fast, from how many tokens, and what of the gradients travels compressed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from trainer.contract.base import CountOrZero, Fraction, PositiveInt, SpecModel
from trainer.contract.models import ModelShape

Factor = Annotated[float, Field(ge=0.0, le=1000.0)]
LearningRate = Annotated[float, Field(gt=0.0, le=1.0)]


class MuonSpec(SpecModel):
    """Muon's part of an optimizer, for the weight matrices of the blocks. Without `learning_rate` it has AdamW's.

    `scale` is the factor of an orthogonal update of R rows and C columns. `rms`: 0.2 sqrt(max(R, C)), as large as
    AdamW's update, so that AdamW's rate and decay fit (Liu et al. 2025, "Muon is scalable for LLM training").
    `spectral`: sqrt(max(1, R / C)), with rates of its own, about 0.02 (Jordan et al. 2024).
    """

    learning_rate: LearningRate | None = None
    momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.95
    nesterov: bool = True
    iterations: Annotated[int, Field(ge=1, le=20)] = 5
    scale: Literal["rms", "spectral"] = "rms"


class ParameterGroup(SpecModel):
    """Factors of the learning rate and of the weight decay for parameters whose whole name matches `pattern`
    (`*`, `?`, `[...]`). Without `weight_decay_factor`: 1 for matrices, 0 for norms and whatever else has one dimension.
    """

    pattern: Annotated[str, Field(min_length=1, max_length=200)]
    learning_rate_factor: Factor = 1.0
    weight_decay_factor: Factor | None = None


class OptimizerSpec(SpecModel):
    """`adamw` for all parameters, or `muon` for the matrices of the blocks and AdamW for the rest: embedding, head,
    norms, routers. Of several `groups` that match a name, the first holds. With `offload` moments and momentum lie in
    host memory and come to the device bucket by bucket in each step: less memory, a longer step, the same numbers."""

    name: Literal["adamw", "muon"] = "adamw"
    learning_rate: LearningRate = 3e-3
    beta1: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
    beta2: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.95
    epsilon: Annotated[float, Field(gt=0.0)] = 1e-8
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.1
    gradient_clip: Annotated[float, Field(gt=0.0)] | None = 1.0
    offload: bool = False
    muon: MuonSpec = MuonSpec()
    groups: Annotated[list[ParameterGroup], Field(max_length=64)] = []


LoraTarget = Literal["query", "key", "value", "output", "gate", "up", "down"]


class LoraSpec(SpecModel):
    """Only low-rank adapters of the blocks' matrices in `targets` are trained (Hu et al. 2021); the base model rests.
    What an adapter adds is scaled by `alpha / rank`. Routed experts have none.

    The export is both `merged`, a model like any other, or the `adapter` alone in PEFT's layout, to be put on the base.
    """

    rank: Annotated[int, Field(ge=1, le=1024)] = 16
    alpha: Annotated[float, Field(gt=0)] = 32.0
    targets: Annotated[list[LoraTarget], Field(min_length=1)] = [
        "query",
        "key",
        "value",
        "output",
        "gate",
        "up",
        "down",
    ]
    export: Literal["merged", "adapter"] = "merged"

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    def check_export(self, shape: ModelShape) -> None:
        """Raises ValueError for an adapter that PEFT would not put on a model of this shape: it takes what is adapted
        of a mixture's feed-forward layers for its routed experts."""
        refused = [target for target in self.targets if target in ("gate", "up", "down")]
        if self.export == "adapter" and shape.moe is not None and shape.adapter_parameters(1, refused):
            raise ValueError(
                f"lora.export adapter: peft knows no adapters of {', '.join(refused)} in a mixture of experts; leave "
                "them out of lora.targets, or take lora.export merged"
            )


class ScheduleSpec(SpecModel):
    """Factor of the learning rate: linear up over `warmup_steps`, then flat, then down to `final_fraction`.

    `wsd` goes down over the last `decay_fraction` of the steps, in the shape of `decay_shape` (`sqrt` is steep first:
    1 - sqrt of the part done, Haegele et al. 2024). `cosine` goes down from the end of the warm-up on, in half a
    cosine. `constant` stays up.
    """

    name: Literal["wsd", "cosine", "constant"] = "wsd"
    warmup_steps: CountOrZero = 20
    decay_fraction: Fraction = 0.2
    decay_shape: Literal["linear", "sqrt", "cosine"] = "linear"
    final_fraction: Fraction = 0.05


class BatchRamp(SpecModel):
    """Small batches first: from `start_tokens_per_step` in equal stages, one a step, of whole sequences, up to
    `tokens_per_step` at step `steps`."""

    start_tokens_per_step: PositiveInt
    steps: PositiveInt


class CompressionSpec(SpecModel):
    """What gradients look like on the wire between replicas; within a replica they are never compressed.

    `powersgd` sends two factors of `rank` columns for each matrix of a block (Vogels et al. 2019), and the rest as
    `int8`; `int8` and `fp8` send a byte for a number and a scale for each block of them. Norms are sent whole, and so
    is everything in the first `start_step` steps. What is lost in a step is added to the gradients of the next.
    """

    kind: Literal["none", "powersgd", "int8", "fp8"] = "none"
    rank: Annotated[int, Field(ge=1, le=1024)] = 8
    start_step: CountOrZero = 0


@dataclass(frozen=True)
class StepSizes:
    """Sequences of each step (0-based), and of all before it: pure functions of the step."""

    full: int
    start: int = 0
    ramp_steps: int = 0

    def at(self, step: int) -> int:
        if step >= self.ramp_steps:
            return self.full
        return self.start + (self.full - self.start) * step // self.ramp_steps

    def before(self, step: int) -> int:
        """The sum of `at` over all earlier steps, in a time that grows with the logarithm of the step."""
        ramped = min(step, self.ramp_steps)
        climbed = _floor_sum(ramped, self.full - self.start, self.ramp_steps) if ramped else 0
        return ramped * self.start + climbed + (step - ramped) * self.full

    @property
    def fewest(self) -> int:
        return self.start if self.ramp_steps else self.full


def step_sizes(tokens_per_step: int, sequence_length: int, batch_ramp: Mapping[str, int] | None) -> StepSizes:
    """Sequences of each step, of the fields of a training spec as they are stored."""
    full = tokens_per_step // sequence_length
    if batch_ramp is None:
        return StepSizes(full)
    return StepSizes(full, batch_ramp["start_tokens_per_step"] // sequence_length, batch_ramp["steps"])


def _floor_sum(count: int, slope: int, divisor: int) -> int:
    """Sum of floor(slope * i / divisor) over 0 <= i < count.

    Points of the integer grid under a line: whole rows are counted at once, and what is left is the same question with
    axes exchanged, as in Euclid's algorithm.
    """
    offset, total = 0, 0
    while count:
        total += count * (count - 1) // 2 * (slope // divisor) + count * (offset // divisor)
        slope, offset = slope % divisor, offset % divisor
        top = slope * count + offset
        count, offset, slope, divisor = top // divisor, top % divisor, divisor, slope
    return total
