"""Replays: segments of a finished training run to compute again, and the results that an attempt registers."""

from typing import Annotated, Literal

from pydantic import Field

from trainer.contract.base import Count32, WireModel
from trainer.contract.manifest import CheckpointManifest

Verdict = Literal["equal", "within_tolerance", "differs", "not_comparable"]
MAX_SEGMENTS = 32
MAX_DIFFERENCES = 10
"""Tensors that a result names at most, those with the largest difference."""
FP32_TOLERANCE, TOLERANCE = 0.001, 0.05
"""Tolerances of replays in fp32 and in lower precision. Rounding in another order, by micro-batches of 2 sequences
instead of 8 on a CPU, differs by up to 6e-6 and 6e-3 after 10 to 100 steps of a small model."""
NonNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


class ReplaySegment(WireModel):
    """A segment: the steps from the checkpoint `start` to the next one, `end`. `start` None: from the first step."""

    number: Count32
    start: CheckpointManifest | None
    end: CheckpointManifest


class Replay(WireModel):
    """The segments of a job that an attempt replays. `job_id`: of that job, under the key of which its checkpoints are.

    `is_same_accelerator`: whether it ran on accelerators of the same name; only then bits can be expected to be equal.
    `tolerance`: largest difference of a tensor elsewhere, relative to what training changed in it.
    """

    job_id: str
    segments: list[ReplaySegment]
    is_same_accelerator: bool
    tolerance: NonNegative


class TensorDifference(WireModel):
    """How a tensor of the replayed state differs from the stored one.

    `largest`: difference of an element; None if one is not finite. `relative`: norm of the difference by the norm of
    what the segment's steps changed in a parameter, or of the stored tensor for other state; None if that is 0.
    """

    name: Annotated[str, Field(max_length=300)]
    largest: NonNegative | None
    relative: NonNegative | None


class ReplayResult(WireModel):
    """Body of POST /replays: the result of one segment, by its number in the job's spec.

    `is_exact`: whether equal bits were expected; `because` has why not, or why the segment differs or cannot be
    compared. `tensors`: compared; `differing`: of which not all bits are equal.
    """

    number: Count32
    verdict: Verdict
    is_exact: bool
    tensors: Count32 = 0
    differing: Count32 = 0
    differences: Annotated[list[TensorDifference], Field(max_length=MAX_DIFFERENCES)] = []
    because: Annotated[str, Field(max_length=2000)] = ""
