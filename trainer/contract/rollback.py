"""Rollbacks: a run goes back to an earlier checkpoint because its loss diverged, and leaves out the data since then."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from trainer.contract.base import Count32, Count64, NonNegativeInt, SpecModel, WireModel
from trainer.contract.optimisation import BatchSizeSchedule

DIVERGED_STEPS = 8
"""Consecutive steps with a loss or gradient that is not finite, or with a loss above the limit, after which a run has
diverged."""

ACCELERATOR_LAG = 2
"""Steps after which the statistics of a step are read on an accelerator; their copy has usually finished by then."""


class RollbackSpec(SpecModel):
    """When a run goes back to an earlier checkpoint because its loss has diverged."""

    max_rollbacks: Annotated[NonNegativeInt, Field(le=100)] = 2
    """Times that the run may go back, over all attempts. It then takes other data: what it has seen since that
    checkpoint is left out, as in the training of PaLM (Chowdhery et al. 2022, section 5.1). It goes back when 8 steps
    in a row had a loss or gradient that is not finite, to the newest checkpoint from before these, and never twice to
    the same one. Without such a checkpoint, or after that many times, the job fails. 0: it fails the first time."""
    loss_sigma: Annotated[float | None, Field(gt=0.0, exclude_if=lambda value: value is None, examples=[8.0])] = None
    """Go back, too, when the loss of 8 steps in a row was above the mean of the last 128 steps by more than this number
    of standard deviations, once there are 20 steps (counted from the start or a resume). Without it, only a loss or
    gradient that is not finite counts."""


class Rollback(WireModel):
    """From step `from_step` on (that of the checkpoint, counted from 0), the data continues at `first_sequence` of the
    order of the whole run. `generation` is that of the attempt which diverged."""

    attempt_id: str
    generation: Count32
    from_step: Count32
    first_sequence: Count64


class RollbackRequest(WireModel):
    """Body of POST /rollbacks: go back to the newest checkpoint of at most step `last_good_step`, and continue the data
    at `first_sequence`, which the run has not seen yet."""

    generation: Count32
    last_good_step: Count32
    first_sequence: Count64
    because: Annotated[str, Field(max_length=2000)]


class RollbackReply(WireModel):
    """`rollback`: None if there is no such checkpoint."""

    rollback: Rollback | None


def first_sequence(step: int, schedule: BatchSizeSchedule, rollbacks: Sequence[Rollback]) -> int:
    """Return where the data of a step begins in the order of the whole run. `rollbacks`: oldest first; the newest one
    from that step or an earlier one counts."""
    for rollback in reversed(rollbacks):
        if rollback.from_step <= step:
            since = schedule.sequences_before(step) - schedule.sequences_before(rollback.from_step)
            return rollback.first_sequence + since
    return schedule.sequences_before(step)
