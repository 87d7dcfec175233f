"""Runs with shadow checkpoints that are disturbed. Workers import this module, so it imports little."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.trainer.runs import FinishedRun, run_alone
from trainer.agent.supervisor import Supervisor
from trainer.agent.worker_process import run_worker
from trainer.contract.training import TrainingSpec
from trainer.resilience.assignment import Assignment

Act = Callable[[Supervisor], None]


def after_step(step: int, act: Act) -> Act:
    """Call `act` when the first rank of the first group has finished `step` steps."""

    def watch(supervisor: Supervisor) -> None:
        while supervisor.worker_group is None or supervisor.worker_group.shared_status.read(0)[0] < step:
            if supervisor._ended.wait(0.001):
                return
        act(supervisor)

    return watch


def send(signal_number: int, local_rank: int) -> Act:
    def act(supervisor: Supervisor) -> None:
        os.kill(supervisor.worker_group._forked[local_rank].process.pid, signal_number)

    return act


def kill(local_rank: int) -> Act:
    return send(signal.SIGKILL, local_rank)


def shadow_run(output: Path, training: TrainingSpec, act: Act | None = None, **options: Any) -> FinishedRun:
    return run_alone(
        output, training, **{"processes": 2, "restarts": 2, "every_steps": 1000, "shadow": 1, "at_start": act} | options
    )


def work_until_a_copy_is_half_made(assignment: Assignment) -> None:
    """Rank 1 of the first group is killed in the middle of its copy of step 15; stands in for `run_worker`."""
    from trainer.checkpoint.shadow import ShadowCheckpoints

    copy = ShadowCheckpoints._copy

    def copy_half(self: ShadowCheckpoints, sources: list, targets: list) -> Any:
        step = max(header.step for header in self._opened.headers())
        if (assignment.rank, assignment.restart_count, step) == (1, 0, 15):
            copy(self, sources[::2], targets[::2])
            os.kill(os.getpid(), signal.SIGKILL)
        return copy(self, sources, targets)

    ShadowCheckpoints._copy = copy_half
    run_worker(assignment)


def work_with_copies_that_have_no_numbers(assignment: Assignment) -> None:
    """Copies of the first group have a NaN and the digest of that; rank 1 is killed at step 25."""
    from trainer.checkpoint.shadow import ShadowCheckpoints

    copy = ShadowCheckpoints._copy

    def copy_nan(self: ShadowCheckpoints, sources: list, targets: list) -> Any:
        step = max(header.step for header in self._opened.headers())
        found = copy(self, sources, targets)
        if assignment.restart_count == 0:
            targets[0].fill_(float("nan"))
            if (assignment.rank, step) == (1, 25):
                os.kill(os.getpid(), signal.SIGKILL)
        return found

    ShadowCheckpoints._copy = copy_nan
    run_worker(assignment)


def work_on_another_mesh(assignment: Assignment) -> None:
    """The second group has another mesh; stands in for `run_worker`."""
    if assignment.restart_count == 1:
        parallelism = assignment.training.parallelism.model_copy(update={"zero": 3})
        assignment = assignment.with_training(assignment.training.model_copy(update={"parallelism": parallelism}))
    run_worker(assignment)


def work_in_another_attempt(assignment: Assignment) -> None:
    """The second group is of another attempt; stands in for `run_worker`."""
    if assignment.restart_count == 1:
        assignment = replace(assignment, run=assignment.run.model_copy(update={"attempt_id": "att_2"}))
    run_worker(assignment)


def work_until_a_save_is_lost(assignment: Assignment) -> None:
    """The save of step 10 of the first group ends with its first rank, after step 13; stands in for `run_worker`."""
    import threading

    from trainer.checkpoint.shadow import ShadowCheckpoints
    from trainer.checkpoint.writer import CheckpointWriter

    take, later = ShadowCheckpoints.take, threading.Event()

    def take_and_notify(self: ShadowCheckpoints, step: int, *arguments: Any) -> None:
        if step == 14:
            later.set()
        take(self, step, *arguments)

    def die(self: CheckpointWriter, *arguments: Any) -> None:
        later.wait()
        os.kill(os.getpid(), signal.SIGKILL)

    ShadowCheckpoints.take = take_and_notify
    if assignment.restart_count == 0:
        CheckpointWriter._commit = die
    run_worker(assignment)


def work_with_copies_that_take_three_steps(assignment: Assignment) -> None:
    """A copy is whole only when training has taken three more steps. The second group may not draw first weights, which
    its copy replaces. Stands in for `run_worker`."""
    import threading

    from trainer.checkpoint.shadow import ShadowCheckpoints
    from trainer.parallel import parallelize

    finish, protect_state = ShadowCheckpoints._finish, ShadowCheckpoints.protect_state
    progressed = threading.Condition()
    reached = 0

    def protect_and_notify(self: ShadowCheckpoints, next_step: int) -> None:
        nonlocal reached
        protect_state(self, next_step)
        with progressed:
            reached = next_step
            progressed.notify_all()

    def finish_late(self: ShadowCheckpoints, slot: int, step: int, *arguments: Any) -> float:
        with progressed:
            progressed.wait_for(lambda: reached >= min(step + 3, assignment.training.steps))
        return finish(self, slot, step, *arguments)

    def refuse(*arguments: Any) -> None:
        raise AssertionError("a restored model needs no first weights")

    ShadowCheckpoints._finish, ShadowCheckpoints.protect_state = finish_late, protect_and_notify
    if assignment.restart_count == 1:
        parallelize.initial_shard = refuse
    run_worker(assignment)
