"""A run that diverges goes back to an earlier checkpoint and takes other data from there."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.runs import run_alone, tiny_training
from trainer.agent import worker_group
from trainer.agent.worker_process import run_worker
from trainer.contract.optimisation import BatchSizeSchedule
from trainer.contract.rollback import Rollback, first_sequence
from trainer.contract.run import EndClass
from trainer.resilience.assignment import Assignment

LOSS = "train/loss"
SEQUENCES = 8  # of a step
BAD = range(43 * SEQUENCES, 46 * SEQUENCES)  # sequences with which every loss is NaN from then on
SPIKING = range(43 * SEQUENCES, 51 * SEQUENCES)


def rollback(from_step: int, position: int) -> Rollback:
    return Rollback(attempt_id="a", generation=0, from_step=from_step, first_sequence=position)


def test_the_data_of_a_step_follows_the_newest_rollback_before_it() -> None:
    schedule = BatchSizeSchedule(10, start=2, ramp_steps=4)
    before = schedule.sequences_before
    plain = [before(step) for step in range(12)]
    assert [first_sequence(step, schedule, []) for step in range(12)] == plain
    first = rollback(6, before(9))
    assert first_sequence(5, schedule, [first]) == before(5)
    assert first_sequence(6, schedule, [first]) == before(9)
    assert first_sequence(8, schedule, [first]) == before(11)
    # At step 8 it diverges again, and goes back to step 2: nothing that has been seen is taken again.
    both = [first, rollback(2, first_sequence(8, schedule, [first]))]
    seen = [first_sequence(step, schedule, both) for step in range(2, 12)]
    assert seen[0] == before(11)
    assert [b - a for a, b in zip(seen, seen[1:], strict=False)] == [schedule.sequences_at(s) for s in range(2, 11)]


@dataclass(frozen=True)
class Diverging:
    """A worker with `factor` times the loss in steps with these sequences, and in all after them if that
    `lasts`. It records the sequences of each step that it takes. Stands in for `run_worker`."""

    positions: range
    factor: float
    lasts: bool = True

    def __call__(self, assignment: Assignment) -> None:
        from trainer.data import loader
        from trainer.training import loop

        counted_tokens, reduce_statistics = loop.counted_tokens, loop.reduce_statistics
        is_bad = [False]

        def observe(state: Any, batches: Any, step: int) -> object:
            first = loader.first_sequence(step, state.loader._schedule, state.loader._rollbacks)
            if state.mesh.rank == state.part.rank == 0:  # not when it computes the data of another rank
                with (assignment.work / "taken.jsonl").open("a") as file:
                    file.write(json.dumps([assignment.restart_count, step, first]) + "\n")
            is_bad[0] = first in self.positions or (is_bad[0] and self.lasts)
            return counted_tokens(state, batches, step)

        def report(state: Any, loss: Any, *arguments: Any) -> object:
            return reduce_statistics(state, loss * self.factor if is_bad[0] else loss, *arguments)

        loop.counted_tokens, loop.reduce_statistics = observe, report
        run_worker(assignment)


def taken(output: Path) -> list[tuple[int, int, int]]:
    """Return (worker group, step, first sequence) of all steps that were computed."""
    (path,) = output.glob("**/taken.jsonl")
    return [tuple(json.loads(line)) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("work", "spec", "because", "reported"),
    [
        pytest.param(
            Diverging(BAD, nan), {}, "the loss or its gradient was not finite", ("step.skipped", range(44, 52)),
            id="nan",
        ),
        pytest.param(
            Diverging(SPIKING, 10.0, lasts=False), {"loss_sigma": 6.0}, "rollback.loss_sigma", ("loss.large", [44]),
            id="spike",
        ),
    ],
)  # fmt: skip
def test_a_run_that_diverges_continues_with_other_data(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    work: Diverging,
    spec: dict,
    because: str,
    reported: tuple[str, Sequence[int]],
) -> None:
    monkeypatch.setattr(worker_group, "run_worker", work)
    training = tiny_training(steps=60, rollback=spec)
    run = run_alone(tmp_path / "run", training, processes=2, every_steps=5, keep_last=5, restarts=1, shadow=1)
    assert run.end_class is EndClass.COMPLETED, run.end
    (back,) = run.events("training.rolled_back")
    assert because in back["because"]
    assert (back["step"], back["diverged_step"], back["sequences"]) == (40, 51, 11 * SEQUENCES)
    kind, bad_steps = reported
    assert [(each["step"], each["first_sequence"], each["last_sequence"]) for each in run.events(kind)] == [
        (step, (step - 1) * SEQUENCES, step * SEQUENCES - 1) for step in bad_steps
    ]
    steps = taken(tmp_path)
    twice = [*range(44), *range(43, 51)]  # the first of them is computed again
    assert [each for each in steps if each[0] == 0] == [(0, step, step * SEQUENCES) for step in twice]
    assert [each for each in steps if each[0] == 1] == [(1, step, (step + 11) * SEQUENCES) for step in range(40, 60)]
    losses = run.series(LOSS)
    assert sorted(losses) == list(range(1, 61))
    assert None not in losses.values()


def test_a_run_that_always_diverges_ends_after_its_rollbacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It never goes back to the same checkpoint, and the checkpoints of the diverged state are gone, as is what is left
    of saves that were interrupted."""
    interrupted = [tmp_path / "run/store/checkpoints" / f"step-{step}-interrupted" for step in (3, 50)]
    for folder in interrupted:
        folder.mkdir(parents=True)
        (folder / "rank0.0").write_bytes(b"a part of it")
    always = range(43 * SEQUENCES, 10_000)
    monkeypatch.setattr(worker_group, "run_worker", Diverging(always, nan))
    run = run_alone(tmp_path / "run", tiny_training(steps=60), every_steps=5, keep_last=5)
    assert run.end_class is EndClass.LOSS_DIVERGED
    assert [each["step"] for each in run.events("training.rolled_back")] == [40, 35]
    assert run.end["message"].endswith("; it had gone back to an earlier checkpoint 2 times before")
    assert all(int(folder.name.split("-")[1]) <= 40 for folder in run.checkpoints)
    assert not [folder for folder in interrupted if folder.exists()]


def test_without_an_earlier_checkpoint_a_run_that_diverges_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_group, "run_worker", Diverging(range(10_000), nan))
    run = run_alone(tmp_path / "run", tiny_training(steps=30), every_steps=5, keep_last=5)
    assert run.end_class is EndClass.LOSS_DIVERGED
    assert run.events("training.rolled_back") == []
