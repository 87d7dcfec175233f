"""Shadow checkpoints: a restart in place continues from the memory of the node, without losing more than a step."""

import os
import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.runs import FinishedRun, run_alone, tiny_training
from tests.trainer.test_runs import LOSS, final_tensors
from trainer.agent.supervisor import Supervisor
from trainer.contract.run import EndClass


def after_step(step: int, act: Callable[[Supervisor], None]) -> Callable[[Supervisor], None]:
    """Call `act` as soon as the first rank of the first group has finished `step` steps."""

    def watch(supervisor: Supervisor) -> None:
        while supervisor.worker_group is None or supervisor.worker_group.shared_status.read(0)[0] < step:
            if supervisor._ended.wait(0.001):
                return
        act(supervisor)

    return watch


def kill(local_rank: int) -> Callable[[Supervisor], None]:
    def act(supervisor: Supervisor) -> None:
        os.kill(supervisor.worker_group._forked[local_rank].process.pid, signal.SIGKILL)

    return act


def shadow_run(output: Path, training: Any, act: Callable[[Supervisor], None] | None = None, **options: Any) -> FinishedRun:
    options = {"processes": 2, "restarts": 2, "every_steps": 1000, "shadow": 1, "at_start": act, **options}
    return run_alone(output, training, **options)


def steps_lost(run: FinishedRun) -> int:
    """Finished steps that the run took twice."""
    points = [point for point in run.points() if LOSS in point["values"]]
    return len(points) - len({point["step"] for point in points})


MESHES = {
    "replicated": (2, {}),
    "sharded": (2, {"zero": 3}),
    "tensor": (2, {"tensor": 2}),
    "pipeline": (2, {"pipeline": 2, "micro_batch_sequences": 2}),
    "compressed sums": (2, {"compression": {"kind": "int8"}}),
}


@pytest.mark.parametrize("name", MESHES)
def test_a_killed_rank_loses_at_most_a_step_and_changes_no_number(tmp_path: Path, name: str) -> None:
    processes, parallelism = MESHES[name]
    training = tiny_training(steps=60, parallelism=parallelism, evaluation={"every_steps": 7, "sequences": 8})
    undisturbed = shadow_run(tmp_path / "undisturbed", training, processes=processes, restarts=0, shadow="none")
    step, rank = random.randrange(5, 50), random.randrange(processes)
    run = shadow_run(tmp_path / "run", training, after_step(step, kill(rank)), processes=processes)
    assert run.end_class is EndClass.COMPLETED
    (restored,) = run.events("checkpoint.restored")
    assert restored["tier"] == "shadow"
    assert restored["step"] >= step - 1
    assert run.series(LOSS) == undisturbed.series(LOSS)
    assert run.series("evaluation/loss") == undisturbed.series("evaluation/loss")
    assert final_tensors(run) == final_tensors(undisturbed)
