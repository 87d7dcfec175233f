"""Where a step's time goes, and which rank the others wait for."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.runs import run_alone, tiny_training
from trainer.contract.run import EndClass
from trainer.reporting import step_clock
from trainer.reporting.step_clock import SLOW_STEPS, SkewDetector, StepClock


def test_parts_are_the_times_between_laps(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([10.0, 11.5, 12.0, 12.5, 13.25, 14.25])
    monkeypatch.setattr(step_clock.time, "monotonic", lambda: next(times))
    steps = StepClock(torch.device("cpu"))
    steps.begin()
    for name in ("forward", "backward", "forward"):
        steps.end_phase(name)
    assert steps.pass_seconds == 2.5
    steps.end_phase("communication")
    steps.end_phase("optimizer")
    steps.end()
    assert steps.take() == {"forward": 2.0, "backward": 0.5, "communication": 0.75, "optimizer": 1.0}


def test_a_rank_that_stays_slow_is_named_once() -> None:
    watch = SkewDetector()
    found = [watch.update([1.0, 1.0, 3.0, 1.0]) for _ in range(2 * SLOW_STEPS)]
    assert found[0] == (2.0, None)
    assert [rank for _, rank in found if rank is not None] == [2]
    assert found[SLOW_STEPS - 1][1] == 2


def test_a_slow_step_now_and_then_is_nothing_to_tell_of() -> None:
    watch = SkewDetector()
    for _ in range(SLOW_STEPS):
        assert watch.update([1.0, 4.0])[1] is None
        assert watch.update([1.0, 1.0]) == (1.0, None)


@pytest.mark.parametrize("parallelism", [{}, {"pipeline": 2}], ids=str)
def test_the_parts_of_a_step_add_up_to_it(tmp_path: Path, parallelism: dict[str, Any]) -> None:
    run = run_alone(tmp_path / "run", tiny_training(parallelism=parallelism), processes=2)
    assert run.end_class is EndClass.COMPLETED, run.end
    idle = ["idle"] if parallelism else []
    parts = ["data_stall", "forward", "backward", *idle, "communication", "optimizer", "other"]
    by_name = {name: run.series(f"time/{name}_seconds") for name in [*parts, "step"]}
    skews, speeds = run.series("time/rank_skew"), run.series("throughput/tokens_per_second")
    for step in range(1, 21):
        assert sum(by_name[name][step] for name in parts) == pytest.approx(by_name["step"][step], rel=1e-3)
        assert all(by_name[name][step] > 0 for name in parts[1:-1])
        assert 1.0 <= skews[step] <= 2.0
        assert not run.series("time/idle_seconds") or parallelism
        assert run.series("throughput/tokens_per_second_per_device")[step] == pytest.approx(speeds[step] / 2)
