"""Ranks with the same parameters notice that one of them differs."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.chaos.faults.worker import AT_STEP, Fault, work
from tests.trainer.runs import MIXTURE, run_alone, tiny_training
from trainer.agent import worker_group
from trainer.contract.run import EndClass
from trainer.reporting.replica_check import CHECK_STEPS, Difference, ReplicaCheck


def check_of(rank: int, **replicas: tuple[int, ...]) -> ReplicaCheck:
    """The check of a rank that shares these parameters, each of ten numbers, with these ranks."""
    parameters = {name: torch.nn.Parameter(torch.arange(10.0)) for name in replicas}
    layouts = {name: SimpleNamespace(replica_ranks=ranks) for name, ranks in replicas.items()}
    weights: Any = SimpleNamespace(trainable=parameters, layouts=layouts, mesh=SimpleNamespace(rank=rank))
    return ReplicaCheck(weights)


def test_the_rank_that_differs_from_the_majority_is_named_once() -> None:
    check = check_of(0, one=(0, 1, 2), two=(0, 1, 2), three=(0,), four=(0, 3))
    assert check.replicas == (0, 1, 2)
    assert check.find_difference((7.0, 7.0, 7.0, 9.0)) is None
    assert check.find_difference((0.0, 0.0, 0.0, 0.0)) is None
    assert check.find_difference((7.0, 8.0, 7.0, 9.0)) == Difference([1], (0, 1, 2))
    assert check.find_difference((7.0, 8.0, 7.0, 9.0)) is None
    assert check.find_difference((6.0, 6.0, 6.0, 9.0)) is None
    assert check.find_difference((1.0, 2.0, 3.0, 9.0)) == Difference([0, 1, 2], (0, 1, 2)), "no majority"
    assert check_of(1, one=(0, 1, 2)).find_difference((7.0, 8.0, 7.0, 9.0)) is None, "the first rank reports"


def test_a_rank_without_replicas_has_nothing_to_check() -> None:
    check = check_of(3, one=(3,))
    assert check.replicas == (3,)
    assert not check.is_due(CHECK_STEPS, 100)
    shared = check_of(0, one=(0, 1))
    assert [step for step in range(40) if shared.is_due(step, 10)] == [10, 16, 20, 30, 32]


@pytest.mark.parametrize("bit", [0, 13, 30, 31])
def test_each_bit_changes_the_checksum(bit: int) -> None:
    check = check_of(0, one=(0, 1), two=(0, 1))
    before = check.checksum().item()
    parameter = check._parameters[1]
    parameter.view(torch.int32)[5] ^= -(2**31) if bit == 31 else 2**bit
    assert check.checksum().item() != before
    assert 1 <= before <= 2**24


def test_a_bit_that_flips_on_one_rank_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "records").mkdir()
    monkeypatch.setattr(worker_group, "run_worker", partial(work, Fault(tmp_path / "records", "bit", "step")))
    training = tiny_training(steps=40, parallelism={"zero": 0})
    run = run_alone(tmp_path / "run", training, processes=3, every_steps=100)
    assert run.end_class is EndClass.COMPLETED
    assert AT_STEP < CHECK_STEPS
    (differ,) = run.events("replicas.differ")
    assert differ == {"step": str(CHECK_STEPS), "ranks": "1", "replicas": "0, 1, 2"}


@pytest.mark.parametrize(
    ("processes", "changes"),
    [
        (2, {"parallelism": {"zero": 0}}),
        pytest.param(
            2, {"parallelism": {"tensor": 2, "zero": 0}, "optimizer": {"name": "muon"}}, marks=pytest.mark.slow
        ),
        pytest.param(4, {"parallelism": {"replicate": 2, "zero": 3}}, marks=pytest.mark.slow),
        pytest.param(2, {"parallelism": {"replicate": 2, "compression": {"kind": "int8"}}}, marks=pytest.mark.slow),
        pytest.param(2, {"parallelism": {"expert": 2}, "model": {"shape": MIXTURE}}, marks=pytest.mark.slow),
    ],
)
def test_replicas_agree_without_a_fault(tmp_path: Path, processes: int, changes: dict[str, Any]) -> None:
    run = run_alone(tmp_path / "run", tiny_training(steps=40, **changes), processes=processes)
    assert run.end_class is EndClass.COMPLETED, run.end
    assert run.events("replicas.differ") == []
