"""Rates and batch sizes are pure functions of the step."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.trainer.runs import tiny_training
from trainer.contract.optimisation import BatchSizeSchedule, ScheduleSpec
from trainer.contract.training import TrainingSpec
from trainer.data.sampler import Sampler
from trainer.optim.learning_rate import learning_rate_factor


def factors(steps: int, **fields: Any) -> list[float]:
    spec = ScheduleSpec.model_validate(fields)
    return [learning_rate_factor(spec, step, steps) for step in range(steps)]


def test_the_schedule_warms_up_holds_and_decays_to_its_final_fraction() -> None:
    found = factors(20, warmup_steps=4, decay_fraction=0.2, final_fraction=0.1)
    assert found[:4] == [0.25, 0.5, 0.75, 1.0]
    assert found[4:16] == [1.0] * 12
    assert found[16:] == pytest.approx([0.775, 0.55, 0.325, 0.1])


def test_a_decay_has_the_shape_that_is_asked_for() -> None:
    common = {"warmup_steps": 0, "decay_fraction": 1.0, "final_fraction": 0.0}
    assert factors(4, decay_shape="linear", **common) == pytest.approx([0.75, 0.5, 0.25, 0.0])
    assert factors(4, decay_shape="sqrt", **common) == pytest.approx([0.5, 1 - 0.5**0.5, 1 - 0.75**0.5, 0.0])
    assert factors(4, decay_shape="cosine", **common) == pytest.approx([0.8535534, 0.5, 0.1464466, 0.0])


def test_cosine_goes_down_from_the_end_of_the_warm_up_and_constant_never() -> None:
    cosine = factors(14, name="cosine", warmup_steps=4, final_fraction=0.2)
    assert cosine[:4] == [0.25, 0.5, 0.75, 1.0]
    assert cosine[4:] == sorted(cosine[4:], reverse=True)
    assert cosine[8] == pytest.approx(0.6)
    assert cosine[13] == pytest.approx(0.2)
    assert factors(6, name="constant", warmup_steps=2) == [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("name", ["wsd", "cosine", "constant"])
@pytest.mark.parametrize("shape", ["linear", "sqrt", "cosine"])
@pytest.mark.parametrize(("warmup", "decay", "steps"), [(0, 0.0, 5), (10, 1.0, 10), (1, 1.0, 1), (3, 0.5, 4)])
def test_the_schedule_never_leaves_its_range(name: str, shape: str, warmup: int, decay: float, steps: int) -> None:
    found = factors(steps, name=name, decay_shape=shape, warmup_steps=warmup, decay_fraction=decay, final_fraction=0.1)
    assert all(0.0 < factor <= 1.0 for factor in found)


@given(full=st.integers(1, 500), data=st.data(), ramp=st.integers(0, 60), step=st.integers(0, 120))
@settings(max_examples=100)
def test_the_sequences_before_a_step_are_the_sum_of_the_steps(
    full: int, data: st.DataObject, ramp: int, step: int
) -> None:
    schedule = BatchSizeSchedule(full, data.draw(st.integers(1, full)), ramp)
    each = [schedule.sequences_at(number) for number in range(step)]
    assert schedule.sequences_before(step) == sum(each)
    assert each == sorted(each)
    assert all(schedule.smallest <= size <= full for size in each)
    assert schedule.sequences_at(ramp) == full


def test_a_step_far_on_in_a_long_ramp_is_found_by_arithmetic() -> None:
    schedule = BatchSizeSchedule(full=4096, start=32, ramp_steps=10**15)
    assert schedule.sequences_before(2) == 64
    # Each stage of the ramp but for rounding down lasts equally long: the mean lies between the ends.
    assert schedule.sequences_before(10**15) == pytest.approx((32 + 4095) / 2 * 10**15, rel=1e-12)


@given(sequences=st.integers(1, 100), full=st.integers(1, 20), data=st.data(), ramp=st.integers(1, 15))
@settings(max_examples=40)
def test_every_epoch_of_a_ramp_sees_each_sequence_once(
    sequences: int, full: int, data: st.DataObject, ramp: int
) -> None:
    schedule = BatchSizeSchedule(full, data.draw(st.integers(1, full)), ramp)
    sampler = Sampler([sequences], 3, "fingerprint", 1)
    steps = [schedule.sequences_before(step) + np.arange(schedule.sequences_at(step)) for step in range(25)]
    order = sampler(np.concatenate(steps))[1]
    for start in range(0, len(order) - sequences + 1, sequences):
        assert sorted(order[start : start + sequences]) == list(range(sequences))


def test_a_ramp_counts_its_tokens() -> None:
    training = tiny_training(batch_ramp={"start_tokens_per_step": 64, "steps": 3}, tokens_per_step=256)
    assert [training.tokens_at(step) for step in range(5)] == [64, 128, 192, 256, 256]
    assert training.tokens_before(5) == 64 + 128 + 192 + 256 + 256


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (100, r"batch_ramp.start_tokens_per_step 100 is not a multiple of sequence_length 32; take 96 or 128"),
        (512, r"batch_ramp.start_tokens_per_step 512 exceeds tokens_per_step 256"),
    ],
)
def test_a_ramp_that_cannot_be_is_refused(start: int, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        tiny_training(batch_ramp={"start_tokens_per_step": start, "steps": 3}, tokens_per_step=256)


@pytest.mark.parametrize(
    ("model", "lora", "rate"),
    [
        ({"preset": "llama-1m"}, False, 3e-3),
        ({"preset": "llama-100m"}, False, 1e-3),
        ({"preset": "llama-8b"}, False, 3e-4),
        ({"preset": "llama-70b"}, False, 1.5e-4),
        ({"preset": "llama-405b"}, False, 8e-5),
        ({"base": "model:some"}, False, 2e-5),
        ({"base": "model:some"}, True, 2e-4),
    ],
    ids=str,
)
def test_a_learning_rate_that_is_not_given_follows_from_what_is_trained(
    model: dict[str, str], lora: bool, rate: float
) -> None:
    changes: dict[str, Any] = {"model": model, "tokenizer": {}, "lora": {} if lora else None}
    chosen = tiny_training(**changes)
    assert chosen.optimizer.learning_rate == chosen.peak_learning_rate == rate
    assert chosen.model_dump()["optimizer"]["learning_rate"] == rate  # the resolved spec has the number
    assert TrainingSpec.model_validate(chosen.model_dump()) == chosen
    given = tiny_training(**changes, optimizer={"learning_rate": 0.5, "beta1": 0.8})
    assert given.peak_learning_rate == 0.5


@pytest.mark.parametrize(
    ("epochs", "steps", "warmup_steps"), [(1, 13, 2), (0.5, 7, 1), (2.0, 25, 4), (0.0001, 1, 0), (9.0, 100, 4)]
)
def test_epochs_are_complete_and_never_more_than_steps(epochs: float, steps: int, warmup_steps: int) -> None:
    """100 sequences, 8 in a step."""
    resolved = tiny_training(epochs=epochs, steps=100).with_epochs(100)
    assert (resolved.steps, resolved.schedule.warmup_steps) == (steps, warmup_steps)
    assert resolved.with_epochs(100) == resolved  # the next attempt starts from the resolved spec


def test_epochs_follow_a_ramp_of_the_batch_size() -> None:
    training = tiny_training(epochs=1.0, steps=100, batch_ramp={"start_tokens_per_step": 32, "steps": 8})
    steps = training.with_epochs(30).steps
    assert training.batch_size_schedule.sequences_before(steps - 1) < 30
    assert training.batch_size_schedule.sequences_before(steps) >= 30


def test_epochs_of_a_mixture_are_refused_with_what_to_do() -> None:
    mixture = {"mixture": [{"source": "dataset:a", "weight": 1}, {"source": "dataset:b", "weight": 2}]}
    with pytest.raises(ValidationError, match="leave epochs out and set steps"):
        tiny_training(epochs=2.0, data=mixture)
