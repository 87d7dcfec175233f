"""Learning rate as a pure function of the step."""

import math

from trainer.contract.optimisation import ScheduleSpec
from trainer.contract.training import TrainingSpec


def learning_rate(training: TrainingSpec, step: int) -> float:
    """Return the learning rate of 0-based `step` of the run."""
    return training.peak_learning_rate * learning_rate_factor(training.schedule, step, training.steps)


def learning_rate_factor(spec: ScheduleSpec, step: int, steps: int) -> float:
    """Return the factor of the peak rate at 0-based `step` of `steps`.

    The last step of a decay has exactly `final_fraction`; where warm-up and decay overlap, the lower one applies.
    """
    warmup = (step + 1) / spec.warmup_steps if step < spec.warmup_steps else 1.0
    decay_steps = _decay_steps(spec, steps)
    remaining = steps - 1 - step
    if remaining >= decay_steps:
        return warmup
    shape = "cosine" if spec.name == "cosine" else spec.decay_shape
    height = _height(shape, 1.0 - remaining / decay_steps)
    return min(warmup, spec.final_fraction + (1.0 - spec.final_fraction) * height)


def _decay_steps(spec: ScheduleSpec, steps: int) -> int:
    if spec.name == "constant":
        return 0
    return steps - spec.warmup_steps if spec.name == "cosine" else round(spec.decay_fraction * steps)


def _height(shape: str, done: float) -> float:
    """Return the height of a decay, from 1 to 0, when the fraction `done` of it has passed."""
    if shape == "linear":
        return 1.0 - done
    return 1.0 - math.sqrt(done) if shape == "sqrt" else (1.0 + math.cos(math.pi * done)) / 2.0
