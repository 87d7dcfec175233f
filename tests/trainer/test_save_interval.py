"""The interval of stored checkpoints that `checkpoint.every_minutes` `auto` chooses."""

import time
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.runs import platform_run, run_alone, stop, tiny_training
from trainer.agent import worker_group
from trainer.agent.supervisor import Supervisor
from trainer.agent.worker_process import run_worker
from trainer.checkpoint import interval as interval_module
from trainer.checkpoint.interval import MEASURED_SAVES, SaveInterval
from trainer.client.local import LocalPlatform
from trainer.contract.checkpoint_interval import (
    FIRST_SECONDS,
    MAX_SECONDS,
    SLOT_HOURS_BETWEEN_FAILURES,
    best_interval,
    slot_hours_between_failures,
)
from trainer.contract.run import RunConfig
from trainer.resilience.assignment import Assignment

COSTS = st.floats(0, 1e4)
TIMES = st.floats(1e-3, 1e9)
SAVES = st.floats(0, 1e5)


@given(cost=COSTS, larger=COSTS, between=TIMES, longer=TIMES, save=SAVES)
def test_the_interval_grows_with_the_cost_and_the_time_between_failures_within_its_bounds(
    cost: float, larger: float, between: float, longer: float, save: float
) -> None:
    costs, times = sorted([cost, larger]), sorted([between, longer])
    found = [[best_interval(cost, between, save) for between in times] for cost in costs]
    assert found[0][0] <= found[0][1] <= found[1][1] and found[0][0] <= found[1][0] <= found[1][1]
    assert all(save <= each <= max(save, MAX_SECONDS) for row in found for each in row)


@given(cost=st.floats(1e-2, 1e2), between=st.floats(1e5, 1e7), factor=st.floats(0.1, 10.0))
def test_no_other_interval_loses_less_time(cost: float, between: float, factor: float) -> None:
    """Lost per second of training: a save in each interval, and half of an interval for each failure."""

    def lost(interval: float) -> float:
        return cost / interval + interval / (2.0 * between)

    chosen = best_interval(cost, between, 0.0)
    assert chosen == MAX_SECONDS or lost(chosen) <= lost(chosen * factor) * (1 + 1e-9)


def test_the_figures_of_llama_3() -> None:
    """On 16,384 GPUs a failure every 3.09 hours, as published; a save that costs 2 s is then due every 3.5 minutes."""
    hours = slot_hours_between_failures(0, 0.0) / 16_384
    assert hours == pytest.approx(3.09, abs=0.01)
    assert best_interval(2.0, 3600.0 * hours, 1.0) == pytest.approx(sqrt(2 * 2.0 * 3600 * hours))
    assert best_interval(2.0, 3600.0 * hours, 1.0) == pytest.approx(3.5 * 60, rel=0.02)


@given(failures=st.integers(0, 1000), slot_hours=st.floats(0, 1e7))
def test_a_history_replaces_the_published_rate_as_it_grows(failures: int, slot_hours: float) -> None:
    found = slot_hours_between_failures(failures, slot_hours)
    assert slot_hours_between_failures(failures + 1, slot_hours) < found
    assert found <= slot_hours_between_failures(failures, slot_hours + 1.0)
    long = slot_hours_between_failures(100 * (failures + 1), 1e9)
    assert long == pytest.approx(1e9 / (100 * (failures + 1)), rel=0.02)


class Events:
    """What a SaveInterval reports, in place of a worker's reporter."""

    def __init__(self) -> None:
        self.data: list[dict[str, float]] = []

    def event(self, kind: str, **data: float) -> None:
        assert kind == "checkpoint.interval"
        self.data.append(data)


def interval(events: Events, every_minutes: float | str | None = "auto", world_size: int = 8) -> SaveInterval:
    checkpoint: dict[str, Any] = {"every_minutes": every_minutes}
    run, _, _ = platform_run(tiny_training(), checkpoint=checkpoint)
    return SaveInterval(run, world_size, events)  # type: ignore[arg-type] # calls nothing else of a reporter


@pytest.mark.parametrize(("every_minutes", "seconds"), [(None, None), (2.5, 150.0)])
def test_an_interval_of_the_spec_is_not_changed(every_minutes: float | None, seconds: float | None) -> None:
    events = Events()
    fixed = interval(events, every_minutes)
    fixed.add_step(1.0, is_saving=True)
    fixed.add_save(100.0, 100.0)
    assert (fixed.seconds, events.data) == (seconds, [])
    assert fixed.is_due(151.0, is_saving=True) == fixed.is_due(151.0, is_saving=False) == (seconds is not None)
    assert not fixed.is_due(149.0, is_saving=False)


def test_no_save_is_due_by_an_automatic_interval_while_one_is_written() -> None:
    first = interval(Events())
    assert first.is_due(FIRST_SECONDS + 1.0, is_saving=False)
    assert not first.is_due(FIRST_SECONDS + 1.0, is_saving=True)
    assert not first.is_due(FIRST_SECONDS - 1.0, is_saving=False)


def test_an_interval_is_chosen_from_the_stall_and_the_slower_steps_of_a_save() -> None:
    events = Events()
    chosen = interval(events)
    assert chosen.seconds == FIRST_SECONDS
    for seconds in (9.0, 1.0, 1.0, 1.0):  # the first step is slow
        chosen.add_step(seconds, is_saving=False)
    for seconds in (1.5, 1.5, 7.0):
        chosen.add_step(seconds, is_saving=True)
    chosen.add_save(0.5, 4.0)
    hours = SLOT_HOURS_BETWEEN_FAILURES / 8
    assert chosen.seconds == pytest.approx(sqrt(2 * (0.5 + 3 * 0.5) * hours * 3600))
    assert events.data == [
        {
            "minutes": chosen.seconds / 60, "stall_seconds": 0.5, "slowdown_seconds": 1.5,
            "mean_hours_between_failures": hours,
        }
    ]  # fmt: skip


def test_an_interval_changes_by_more_than_a_fifth_or_not_at_all() -> None:
    events = Events()
    chosen = interval(events)
    chosen.add_save(1.0, 4.0)
    first = chosen.seconds
    for _ in range(MEASURED_SAVES):
        chosen.add_save(1.4, 4.0)  # 18 % more
    assert chosen.seconds == first and len(events.data) == 1
    for _ in range(MEASURED_SAVES):
        chosen.add_save(4.0, 4.0)
    assert first is not None and chosen.seconds == pytest.approx(2 * first)
    assert [each["stall_seconds"] for each in events.data] == [1.0, 4.0]
    chosen.add_save(4.0, 1e5)
    assert chosen.seconds == 1e5, "no save begins before the one before has ended"


def work_with_an_early_first_save(assignment: Assignment) -> None:
    """A worker with the first save by time after its first step; stands in for `run_worker`."""
    interval_module.FIRST_SECONDS = 0.0
    run_worker(assignment)


def test_a_run_saves_by_the_interval_that_it_has_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a job that fails so often that a save is due when the one before is stored."""
    output, configured = tmp_path / "run", LocalPlatform.run

    def run_of(platform: LocalPlatform) -> RunConfig:
        return configured(platform).model_copy(update={"slot_hours_between_failures": 1e-9})

    def stop_after_three(supervisor: Supervisor) -> None:
        until = time.monotonic() + 120.0
        while len(list(output.glob("store/checkpoints/*/manifest.json"))) < 3 and time.monotonic() < until:
            time.sleep(0.01)  # between two looks at the folder, which other processes write
        stop(supervisor)

    monkeypatch.setattr(LocalPlatform, "run", run_of)
    monkeypatch.setattr(worker_group, "run_worker", work_with_an_early_first_save)
    training = tiny_training(steps=10**6, evaluation={"every_steps": 10**6, "sequences": 8})
    run = run_alone(output, training, every_steps=10**6, every_minutes="auto", keep_last=10, at_start=stop_after_three)
    by_time = [event for event in run.events("checkpoint.saved") if not event["final"]]
    assert len(by_time) >= 3, "the spec's own interval is a million steps"
    (first, *_) = run.events("checkpoint.interval")
    assert first["minutes"] == pytest.approx(by_time[0]["seconds"] / 60, abs=1e-4)
