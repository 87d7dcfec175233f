"""What a shape says of positions: how rotary ones are scaled to longer sequences, and what takes their place."""

from collections.abc import Iterator
from math import log, sqrt
from typing import Annotated, Literal

from pydantic import Field

from trainer.contract.base import CheckedModel, FieldConflict, PositiveInt, SpecModel

PairFactors = Annotated[
    tuple[Annotated[float, Field(gt=0)], ...] | None,
    Field(min_length=1, max_length=4096, exclude_if=lambda value: value is None, examples=[[1.0, 1.1, 4.0]]),
]


class RopeScaling(CheckedModel):
    """Scaling of rotary position embeddings to longer sequences. `linear` (Chen et al. 2023) stretches all wavelengths.
    `llama3`, as in Llama 3.1, and `yarn` (Peng et al. 2023) stretch long wavelengths and leave short ones as they are,
    with a smooth change between two limits. `longrope` (Ding et al. 2024) has a factor for each wavelength."""

    kind: Annotated[
        Literal["llama3", "linear", "yarn", "longrope"],
        Field(exclude_if=lambda value: value == "llama3", examples=["yarn"]),
    ] = "llama3"
    """How wavelengths are scaled: `linear` stretches all of them, `llama3` and `yarn` the long ones, `longrope` each by
    a factor of its own."""
    factor: Annotated[float, Field(ge=1, examples=[8.0])]
    """Factor by which long wavelengths are stretched. For `longrope`: by which sequences became longer."""
    low_frequency_factor: Annotated[float, Field(gt=0)] = 1.0
    """For `llama3`: wavelengths longer than `original_length` divided by this factor are stretched fully. At most
    `high_frequency_factor`; with the same, no wavelength is between the two, as in Llama 4."""
    high_frequency_factor: Annotated[float, Field(gt=0)] = 4.0
    """For `llama3`: wavelengths shorter than `original_length` divided by this factor are not stretched."""
    original_length: Annotated[PositiveInt | None, Field(examples=[8192])] = None
    """Sequence length that the model was trained on before scaling, in tokens. Required for `llama3`, `yarn` and
    `longrope`, without effect for `linear`."""
    beta_fast: Annotated[float, Field(gt=0, exclude_if=lambda value: value == 32.0)] = 32.0
    """For `yarn`: what rotates more often than this in `original_length` is not stretched."""
    beta_slow: Annotated[float, Field(gt=0, exclude_if=lambda value: value == 1.0)] = 1.0
    """For `yarn`: what rotates less often than this in `original_length` is stretched fully. Less than `beta_fast`."""
    attention_factor: Annotated[float | None, Field(gt=0, exclude_if=lambda value: value is None, examples=[1.2])] = (
        None
    )
    """For `yarn` and `longrope`: factor of cosines and sines. Without it, 0.1 x ln(`factor`) + 1 for `yarn`, and
    sqrt(1 + ln(`factor`) / ln(`original_length`)) for `longrope`."""
    mscale: Annotated[float | None, Field(gt=0, exclude_if=lambda value: value is None, examples=[1.0])] = None
    """For `yarn` with `mla`: cosines and sines are multiplied by 0.1 x this x ln(`factor`) + 1, and divided by the same
    of `mscale_all_dim`. Needs that one; not with `attention_factor`."""
    mscale_all_dim: Annotated[float | None, Field(gt=0, exclude_if=lambda value: value is None, examples=[1.0])] = None
    """For `yarn` with `mla`: scores of attention are multiplied by the square of 0.1 x this x ln(`factor`) + 1."""
    truncate: Annotated[bool, Field(exclude_if=bool)] = True
    """For `yarn`: whether the two limits are rounded to whole pairs of elements."""
    short_factors: PairFactors = None
    """For `longrope`: factor of each pair of elements, where `sequence_length` is at most `original_length`."""
    long_factors: PairFactors = None
    """For `longrope`: factor of each pair of elements, where `sequence_length` is above `original_length`."""

    def _conflicts(self) -> Iterator[FieldConflict]:
        low, high = self.low_frequency_factor, self.high_frequency_factor
        if low > high:
            message = f"low_frequency_factor {low} must be at most high_frequency_factor {high}"
            yield FieldConflict("low_frequency_factor", message, ("high_frequency_factor",))
        if self.beta_slow >= self.beta_fast:
            message = f"beta_slow {self.beta_slow} must be below beta_fast {self.beta_fast}"
            yield FieldConflict("beta_slow", message, ("beta_fast",))
        if self.kind != "linear" and self.original_length is None:
            message = f"original_length is missing, which kind {self.kind} needs; give the length before scaling"
            yield FieldConflict("original_length", message, ("kind",))
        if self.mscale is not None and (self.mscale_all_dim is None or self.attention_factor is not None):
            message = f"mscale {self.mscale} needs mscale_all_dim, and no attention_factor; set mscale_all_dim alone"
            yield FieldConflict("mscale", message, ("mscale_all_dim", "attention_factor"))
        for name, kinds in _SCALING_KINDS.items():
            if self.kind not in kinds and getattr(self, name) != RopeScaling.model_fields[name].default:
                message = f"{name} belongs to kind {' and '.join(kinds)}, not {self.kind}; leave it out"
                yield FieldConflict(name, message, ("kind",))
        if self.kind == "longrope":
            for name in ("short_factors", "long_factors"):
                if getattr(self, name) is None:
                    message = f"{name} is missing, which kind longrope needs; give one for each pair of elements"
                    yield FieldConflict(name, message, ("kind",))
            if self.original_length == 1:
                yield FieldConflict("original_length", "original_length 1 has no logarithm to divide by; it is longer")

    @property
    def amplitude(self) -> float:
        """Return the factor of cosines and sines."""
        if self.attention_factor is not None:
            return self.attention_factor
        if self.kind == "longrope":
            assert self.original_length is not None, "kind longrope needs it"
            return sqrt(1.0 + log(self.factor) / log(self.original_length))
        if self.mscale is not None and self.mscale_all_dim is not None:
            return self._yarn_scale(self.mscale) / self._yarn_scale(self.mscale_all_dim)
        return self._yarn_scale(1.0) if self.kind == "yarn" else 1.0

    @property
    def score_factor(self) -> float:
        """Return the factor of the scores of attention."""
        return 1.0 if self.mscale_all_dim is None else self._yarn_scale(self.mscale_all_dim) ** 2

    def _yarn_scale(self, weight: float) -> float:
        return 0.1 * weight * log(self.factor) + 1.0

    def pair_factors(self, sequence_length: int) -> tuple[float, ...]:
        """Return the factor of each pair of elements, for kind `longrope`."""
        assert self.original_length is not None, "kind longrope needs it"
        found = self.long_factors if sequence_length > self.original_length else self.short_factors
        assert found is not None, "kind longrope needs both"
        return found


class TemperatureTuning(SpecModel):
    """Factor of queries by position, in layers without rotary positions, as in Llama 4 (Nakanishi 2025,
    Scalable-Softmax): 1 + `attn_scale` x ln(1 + floor(n / `floor_scale`)) for token n of its document, counted from 1.
    The fields have the names of Hugging Face's layout."""

    floor_scale: Annotated[PositiveInt, Field(examples=[8192])] = 8192
    """Number of tokens after which the factor grows."""
    attn_scale: Annotated[float, Field(gt=0, examples=[0.1])] = 0.1
    """How much the factor grows."""


_SCALING_KINDS = {
    "low_frequency_factor": ("llama3",),
    "high_frequency_factor": ("llama3",),
    "beta_fast": ("yarn",),
    "beta_slow": ("yarn",),
    "truncate": ("yarn",),
    "mscale": ("yarn",),
    "mscale_all_dim": ("yarn",),
    "attention_factor": ("yarn", "longrope"),
    "short_factors": ("longrope",),
    "long_factors": ("longrope",),
}
"""The kinds of scaling that a field belongs to."""
