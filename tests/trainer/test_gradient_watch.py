"""Large gradients are noticed by their norm and by the steps before, once until they are over."""

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.trainer.runs import run_alone, tiny_training
from trainer.agent import worker_group
from trainer.agent.supervisor import Supervisor
from trainer.agent.worker_process import run_worker
from trainer.contract.optimisation import GradientWatchSpec
from trainer.contract.run import EndClass
from trainer.data.batch import MicroBatch
from trainer.reporting.gradient_watch import MIN_STEPS, WINDOW, GradientWatch, GradientWatchState
from trainer.resilience.assignment import Assignment


def test_a_norm_above_the_absolute_limit_is_reported_until_it_is_over() -> None:
    watch = GradientWatch(GradientWatchSpec())
    found = [watch.check(norm) for norm in (1.0, 4.6e8, 4.6e8, 1.0, 2e4)]
    assert [each is not None for each in found] == [False, True, False, False, True]
    assert found[1] == "above optimizer.gradient_watch.absolute 10000"


def test_a_norm_is_compared_with_the_median_of_the_steps_before() -> None:
    watch = GradientWatch(GradientWatchSpec())
    assert watch.check(0.5) is None
    assert watch.check(50.0) is None, "too few steps to compare with"
    for _ in range(MIN_STEPS):
        assert watch.check(0.5) is None
    assert watch.check(4.9) is None
    assert watch.check(5.1) == "10.2 times the median of the last 23 steps"


def test_limits_can_be_disabled_and_skipped_steps_are_left_out() -> None:
    watch = GradientWatch(GradientWatchSpec(absolute=None, relative=None))
    assert [watch.check(norm) for norm in [1.0] * 30 + [1e9, math.nan, math.inf]] == [None] * 33
    watch = GradientWatch(GradientWatchSpec())
    assert [watch.check(norm) for norm in (math.nan, math.inf)] == [None, None]


def test_outliers_are_skipped_by_deviations_from_the_mean_and_a_lasting_change_is_followed() -> None:
    assert GradientWatch(GradientWatchSpec()).skip_limit == math.inf
    watch = GradientWatch(GradientWatchSpec(skip_sigma=6.0))
    for number in range(MIN_STEPS):
        assert watch.skip_limit == math.inf
        watch.check(1.0 + 0.1 * (number % 2))
    assert math.isclose(watch.skip_limit, 1.05 + 6 * 0.05)
    watch.check(1e8)
    assert 1.35 < watch.skip_limit < 1.6, "one outlier does not let the next one through"
    steps = 0
    while watch.skip_limit < 5.0:
        watch.check(5.0)
        steps += 1
    assert steps < WINDOW


def test_a_watch_continues_where_another_stopped() -> None:
    spec = GradientWatchSpec(skip_sigma=2.0)
    norms = [1.0 + 0.1 * (number % 7) for number in range(60)]
    one, first = GradientWatch(spec), GradientWatch(spec)
    assert GradientWatch(spec, first.state).skip_limit == math.inf
    for norm in norms[:30]:
        one.check(norm)
        first.check(norm)
    second = GradientWatch(spec, GradientWatchState.model_validate_json(first.state.model_dump_json()))
    assert [second.check(norm) for norm in [*norms[30:], 99.0]] == [one.check(norm) for norm in [*norms[30:], 99.0]]
    assert second.state == one.state
    fresh = GradientWatchState.model_validate_json(GradientWatch(spec).state.model_dump_json())
    assert fresh.outliers.limit == math.inf


def work_with_a_large_layer(assignment: Assignment) -> None:
    """A worker that multiplies, in the seventh step, the gradient of one matrix and the loss of the second micro-batch
    of data rank 1, whichever rank computes it, and stores that; stands in for `run_worker`."""
    from trainer.parallel.parallelize import ParallelModel
    from trainer.training import loop

    counted_tokens, loss_of = loop.counted_tokens, ParallelModel._loss

    def enlarge(state: Any, batches: Any, step: int) -> object:
        now[0] = step
        if step == 0:
            weight = state.model.weights.trainable["blocks.1.attention.value.weight"]
            weight.register_hook(lambda gradient: gradient * (1e7 if now[0] == 6 else 1.0))
        if step == 6 and state.part.rank == 1:
            worst.append(batches[1])
            (assignment.work / "worst.json").write_text(json.dumps(batches[1].tokens_BS.tolist()))
        return counted_tokens(state, batches, step)

    def enlarged_loss(model: ParallelModel, batch: MicroBatch) -> torch.Tensor:
        loss = loss_of(model, batch)
        return loss * 3 if any(batch.tokens_BS is each.tokens_BS for each in worst) else loss

    now: list[int] = [0]
    worst: list[MicroBatch] = []
    loop.counted_tokens, ParallelModel._loss = enlarge, enlarged_loss
    run_worker(assignment)


def test_the_report_of_a_large_gradient_names_its_layer_and_its_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_group, "run_worker", work_with_a_large_layer)
    training = tiny_training(parallelism={"zero": 0, "micro_batch_sequences": 2})
    run = run_alone(tmp_path / "run", training, processes=2)
    assert run.end_class is EndClass.COMPLETED, run.end
    (event,) = run.events("gradient.large")
    assert (event["step"], event["first_sequence"], event["last_sequence"]) == (7, 48, 55)
    assert event["layers"].startswith("blocks.1.attention 100%, ")
    (path,) = run.output.glob("**/worst.json")
    named = re.fullmatch(r"(\S+) in rows of dataset:tiny (\S+): (.+)", event["worst_batch"])
    assert named is not None, event["worst_batch"]
    loss, shard, rows = named.groups()
    assert float(loss) > 1.5 * run.series("train/loss")[7]
    (shard_path,) = run.output.glob(f"**/{shard}")
    tokens = np.fromfile(shard_path, dtype=np.uint16)
    stored = [tokens[int(row) * 32 :][:32].tolist() for row in rows.split(", ")]
    assert stored == json.loads(path.read_text())


def test_a_run_skips_outliers_and_takes_the_other_steps(tmp_path: Path) -> None:
    """Every second gradient is one, of a model that hardly changes and with a limit right above the mean."""
    optimizer = {"learning_rate": 1e-6, "gradient_watch": {"skip_sigma": 0.001}}
    run = run_alone(tmp_path / "run", tiny_training(steps=40, optimizer=optimizer), processes=2)
    assert run.end_class is EndClass.COMPLETED, run.end
    skipped = run.events("step.skipped")
    assert skipped
    assert all(event["step"] > MIN_STEPS for event in skipped)
    assert all("skip_sigma 0.001" in event["because"] for event in skipped)
    norms = run.series("train/gradient_norm")
    assert run.series("train/skipped_steps")[40] == len(skipped) < sum(step > MIN_STEPS for step in norms)


def test_a_resume_from_a_stored_checkpoint_continues_its_limits(tmp_path: Path) -> None:
    optimizer = {"learning_rate": 1e-6, "gradient_watch": {"skip_sigma": 0.001}}
    training = tiny_training(steps=50, optimizer=optimizer, rollback={"loss_sigma": 50})
    whole = run_alone(tmp_path / "whole", training)

    def kill(supervisor: Supervisor) -> None:
        assert supervisor.worker_group is not None
        supervisor.worker_group._forked[0].process.kill()

    run = run_alone(tmp_path / "run", training, every_steps=30, restarts=1, at_first_checkpoint=kill)
    assert [event["step"] for event in run.events("checkpoint.restored")] == [30]
    for name in ("train/loss", "train/skipped_steps"):
        assert run.series(name) == whole.series(name)
