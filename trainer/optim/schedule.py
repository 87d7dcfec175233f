"""Learning rate as a pure function of the step."""

from trainer.contract.training import ScheduleSpec, TrainingSpec


def learning_rate(training: TrainingSpec, step: int) -> float:
    """Rate of 0-based `step` of the run."""
    return training.optimizer.learning_rate * learning_rate_factor(training.schedule, step, training.steps)


def learning_rate_factor(spec: ScheduleSpec, step: int, steps: int) -> float:
    """Factor of the peak rate at 0-based `step` of `steps`: linear up, flat, linear down (warmup-stable-decay).

    The last step has exactly `final_fraction`; where warm-up and decay overlap, the lower one holds.
    """
    warmup = (step + 1) / spec.warmup_steps if step < spec.warmup_steps else 1.0
    decay_steps = round(spec.decay_fraction * steps)
    remaining = steps - 1 - step
    if decay_steps == 0 or remaining >= decay_steps:
        return warmup
    progress = remaining / decay_steps
    return min(warmup, spec.final_fraction + (1.0 - spec.final_fraction) * progress)
