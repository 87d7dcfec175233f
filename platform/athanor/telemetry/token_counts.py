"""How many tokens a job has read after each step: the charts' axis of tokens."""

from collections.abc import Mapping
from typing import Any

from trainer.contract.optimisation import batch_size_schedule

RAMP_INTERVALS = 64  # of a batch size ramp, along which the count is no straight line


def token_counts(training: Mapping[str, Any] | None) -> dict[str, list[int]] | None:
    """Return `steps` and the tokens read when each is done (`tokens`), from step 0 to the last step of the spec.

    Between two of the steps the count rises linearly: exactly outside a batch size ramp, and to 1/8192 of the ramp's
    increase inside. `training` is the resolved spec's section. None: the job does not train.
    """
    if training is None:
        return None
    length = training["sequence_length"]
    schedule = batch_size_schedule(training["tokens_per_step"], length, training.get("batch_ramp"))
    ramped = min(schedule.ramp_steps, training["steps"])
    steps = sorted({training["steps"], *(ramped * at // RAMP_INTERVALS for at in range(RAMP_INTERVALS + 1))})
    return {"steps": steps, "tokens": [schedule.sequences_before(step) * length for step in steps]}
