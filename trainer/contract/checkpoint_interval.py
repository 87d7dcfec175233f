"""How far apart stored checkpoints are, by what a save costs and how often a job fails. Pure."""

from math import sqrt

from trainer.contract.base import WireModel

SLOT_HOURS_BETWEEN_FAILURES = 16_384 * 54 * 24 / 419
"""Mean slot-hours between failures without a history of one's own: 419 unexpected interruptions of 16,384 GPUs in 54
days (The Llama 3 Herd of Models, arXiv:2407.21783, section 3.3). About 50,700; CPUs may fail less often."""
FIRST_SECONDS = 600.0
"""Interval until the first save of a process is measured."""
MAX_SECONDS = 86_400.0
"""Longest interval. The mean time between failures is an estimate, and a save a day costs little, however large."""


class ChosenInterval(WireModel):
    """Data of the event `checkpoint.interval`, which describes the fields."""

    minutes: float
    stall_seconds: float
    slowdown_seconds: float
    mean_hours_between_failures: float


def best_interval(cost_seconds: float, seconds_between_failures: float, save_seconds: float) -> float:
    """Return the seconds of training between two saves that lose the least time to saves and failures together.

    sqrt(2 x cost x mean time between failures): J. W. Young, A first order approximation to the optimum checkpoint
    interval (1974). It is accurate while a save costs much less than the time between failures; the terms of higher
    order are in J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps (2006).

    `cost_seconds`: training time that a save costs. `seconds_between_failures`: the mean of the whole job.
    `save_seconds`: how long a save takes until it is stored, which is never undercut, as saves do not overlap. At most
    MAX_SECONDS, unless a save takes longer.
    """
    return max(save_seconds, min(sqrt(2.0 * cost_seconds * seconds_between_failures), MAX_SECONDS))


def slot_hours_between_failures(failures: int, slot_hours: float) -> float:
    """Return the mean slot-hours between failures, estimated from a number of failures in so many slot-hours.

    The published rate counts as one failure in SLOT_HOURS_BETWEEN_FAILURES beside them: the inverse of the mean of the
    posterior gamma distribution of a Poisson rate. Without a history it is the published figure, with a long one the
    observed quotient.
    """
    return (SLOT_HOURS_BETWEEN_FAILURES + slot_hours) / (1 + failures)
