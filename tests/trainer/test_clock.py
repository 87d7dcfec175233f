"""Where a step's time goes, and which rank the others wait for."""

import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.trainer.ranks import RankPool
from tests.trainer.runs import TINY, run_alone, tiny_training
from trainer.contract.launch_plan import plan_mesh
from trainer.contract.parallelism import MeshSizes
from trainer.contract.run import EndClass
from trainer.data.batch import MicroBatch
from trainer.parallel.mesh import Mesh
from trainer.parallel.parallelize import parallelize_model
from trainer.reporting import step_clock
from trainer.reporting.compute_time import MIN_STEPS_BETWEEN_SAMPLES, ComputeSampler
from trainer.reporting.stats import StepStats
from trainer.reporting.step_clock import SLOW_STEPS, SkewDetector, StepClock


def test_parts_are_the_times_between_laps(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([9.0, 10.0, 11.5, 12.0, 12.5, 13.25, 14.25, 14.5])
    monkeypatch.setattr(step_clock.time, "monotonic", lambda: next(times))
    steps = StepClock(torch.device("cpu"))
    steps.begin()
    for name in ("forward", "backward", "forward"):
        steps.end_phase(name)
    assert steps.pass_seconds == 2.5
    steps.end_phase("communication")
    steps.end_phase("optimizer")
    steps.end()
    assert steps.take() == (5.5, {"forward": 2.0, "backward": 0.5, "communication": 0.75, "optimizer": 1.0})


def test_each_step_has_its_own_time_when_several_are_taken_together(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 9.0, 10.0, 20.0, 20.0, 21.0, 22.0, 23.0])
    monkeypatch.setattr(step_clock.time, "monotonic", lambda: next(times))
    steps = StepClock(torch.device("cpu"))
    steps.resume()
    for number in range(3):
        if number == 2:
            steps.resume()  # an evaluation was between these steps
        steps.begin()
        steps.end_phase("forward")
        steps.end_phase("backward")
        steps.end()
    assert [steps.take()[0] for _ in range(3)] == [4.0, 5.0, 3.0]


def test_a_rank_that_stays_slow_is_named_once() -> None:
    watch = SkewDetector()
    found = [watch.update([1.0, 1.0, 3.0, 1.0]) for _ in range(2 * SLOW_STEPS)]
    assert found[0] == (3.0, None)
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
    speeds = run.series("throughput/tokens_per_second")
    for step in range(1, 21):
        assert sum(by_name[name][step] for name in parts) == pytest.approx(by_name["step"][step], rel=1e-3)
        assert all(by_name[name][step] > 0 for name in parts[1:-1])
        assert not run.series("time/idle_seconds") or parallelism
        assert run.series("throughput/tokens_per_second_per_device")[step] == pytest.approx(speeds[step] / 2)
    peaks, means = run.series("memory/peak_bytes"), run.series("memory/mean_peak_bytes")
    stalls, longest = run.series("time/data_stall_seconds"), run.series("time/longest_data_stall_seconds")
    for step in range(1, 21):
        assert 2**20 < means[step] <= peaks[step]
        assert run.series("memory/peak_rank")[step] in (0, 1)
        assert longest[step] >= stalls[step] * 0.999  # of any rank, not only of the first


@pytest.mark.parametrize(("parallelism", "measured"), [({"zero": 0}, set(range(1, 21))), ({"zero": 3}, {6})], ids=str)
def test_ranks_are_compared_by_what_they_compute(
    tmp_path: Path, parallelism: dict[str, Any], measured: set[int]
) -> None:
    """Without waits within the passes in every step, otherwise in measured ones."""
    run = run_alone(tmp_path / "run", tiny_training(parallelism=parallelism), processes=2)
    skews = run.series("time/rank_skew")
    assert set(skews) == measured
    assert all(skew >= 1.0 for skew in skews.values())
    if len(measured) == 1:  # the time of the measurement itself is no pass and no communication
        other = run.series("time/other_seconds")
        assert other[6] > 5 * statistics.median(other.values())


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(2) as started:
        yield started


def passes_of_unequal_ranks(mesh: Mesh, parallelism: dict[str, Any], extra: int) -> list[tuple[float, float]]:
    """On a rank: (seconds, of them computing) of some passes; the last rank computes every block's input norm and
    products `extra` times more."""
    training = tiny_training(
        model={"shape": {**TINY["model"]["shape"], "hidden_size": 128, "intermediate_size": 256}},
        parallelism={"micro_batch_sequences": 4, **parallelism}, tokens_per_step=2048, sequence_length=128,
    )  # fmt: skip
    sizes = plan_mesh(training, 300, mesh.world_size)
    assert isinstance(sizes, MeshSizes), sizes
    mesh = mesh.with_sizes(sizes)
    model = parallelize_model(training, 300, mesh, 4)
    sampler = ComputeSampler(mesh.device, sizes, first_step=-MIN_STEPS_BETWEEN_SAMPLES)
    assert sampler.is_needed
    work = torch.randn(256, 256)

    def compute_more(*_: Any) -> None:
        for _ in range(extra if mesh.rank == mesh.world_size - 1 else 0):
            torch.mm(work, work)

    for block in model.stages[0].blocks.values():
        block.register_forward_pre_hook(compute_more)
    rows = torch.randint(0, 300, (16 // sizes.data, 129))
    batches = [MicroBatch(row[:, :-1], row[:, 1:]) for row in rows.split(4)]
    found = []
    for number in range(4):
        begin = time.monotonic()
        with sampler.measure(number * MIN_STEPS_BETWEEN_SAMPLES, is_profiled=False):
            model.forward_backward(batches, 2048.0)
            seconds = time.monotonic() - begin
        found.append((seconds, sampler.seconds))
        dist.barrier()
    return found[1:]


@pytest.mark.parametrize("parallelism", [{"zero": 3}, {"tensor": 2, "zero": 0}, {"context": 2, "zero": 3}], ids=str)
def test_a_slow_rank_is_found_though_the_others_wait_for_it_within_the_passes(
    parallelism: dict[str, Any], pool: RankPool
) -> None:
    fast, slow = pool.run(2, passes_of_unequal_ranks, parallelism, 300)  # several times its own work
    (fast_pass, fast_computing), (slow_pass, slow_computing) = (
        [min(column) for column in zip(*rank, strict=True)]  # what other processes disturb least
        for rank in (fast, slow)
    )
    assert slow_pass / fast_pass < 1.2  # the durations of passes show nothing
    assert slow_computing / fast_computing > 2 * slow_pass / fast_pass


def test_samples_are_spaced_by_what_passes_take() -> None:
    sampler = ComputeSampler(torch.device("cpu"), MeshSizes(shard=2, zero=3), first_step=0)
    stats = StepStats(
        0, 1.0, 1.0, True, False, 0, 0, 0, 0, 0, 0, 0,
        (0.5, 3.0), (0, 0), (1, 1), (0, 0), (0, 0), (0, 0), (0, 0), (), (),
    )  # fmt: skip
    measured = []
    sampler.plan([replace(stats, pass_seconds=(0.0, 0.0))])
    for step in range(50):
        with sampler.measure(step, is_profiled=step == 5):
            torch.ones(3).sum()
        sampler.plan([stats] if step > 2 else [])
        if sampler.seconds:
            measured.append(step)
    assert measured == [25, 45]  # 5 was left out for a profile; 60 s are 20 passes of the slower rank
