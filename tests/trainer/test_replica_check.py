"""Ranks with the same parameters notice that one of them differs."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.chaos.faults.two_nodes import Agents
from tests.chaos.faults.worker import AT_STEP, Fault, _step, work
from tests.chaos.faults.world import tiny_platform
from tests.trainer.agent_api import AgentApi
from tests.trainer.runs import MIXTURE, FinishedRun, run_alone, tiny_training
from trainer.agent import worker_group
from trainer.agent.worker_process import run_worker
from trainer.contract.run import EndClass
from trainer.reporting.replica_check import CHECK_STEPS, RECURRENCE_STEPS, Difference, ReplicaCheck
from trainer.reporting.replica_evidence import ReplicaEvidence, Resolution
from trainer.resilience.assignment import Assignment

REPLICATED = tiny_training(steps=24, parallelism={"zero": 0})


def flip_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flip a bit of a summed gradient on rank 1, in step `AT_STEP` of the first worker group."""
    (tmp_path / "records").mkdir()
    monkeypatch.setattr(worker_group, "run_worker", partial(work, Fault(tmp_path / "records", "bit", "step")))


def weights_of(rank: int, **replicas: tuple[int, ...]) -> Any:
    """The weights of a rank that shares these parameters, each of ten numbers, with these ranks."""
    parameters = {name: torch.nn.Parameter(torch.arange(10.0)) for name in replicas}
    layouts = {name: SimpleNamespace(replica_ranks=ranks) for name, ranks in replicas.items()}
    return SimpleNamespace(trainable=parameters, layouts=layouts, mesh=SimpleNamespace(rank=rank))


def check_of(rank: int, **replicas: tuple[int, ...]) -> ReplicaCheck:
    """The check of such a rank."""
    return ReplicaCheck(weights_of(rank, **replicas))


def test_the_rank_that_differs_from_the_majority_is_named_once() -> None:
    check = check_of(0, one=(0, 1, 2), two=(0, 1, 2), three=(0,), four=(0, 3))
    assert check.replicas == (0, 1, 2)
    assert check.find_difference(8, (7.0, 7.0, 7.0, 9.0)) is None
    assert check.find_difference(9, (0.0, 0.0, 0.0, 0.0)) is None
    assert check.find_difference(10, (7.0, 8.0, 7.0, 9.0)) == Difference(10, [1], (0, 1, 2))
    assert check.find_difference(11, (7.0, 8.0, 7.0, 9.0)) is None
    assert check.find_difference(12, (6.0, 6.0, 6.0, 9.0)) is None
    without_majority = check.find_difference(16, (1.0, 2.0, 3.0, 9.0))
    assert without_majority == Difference(16, [0, 1, 2], (0, 1, 2))


def test_a_rank_without_replicas_has_nothing_to_check() -> None:
    check = check_of(3, one=(3,))
    assert check.replicas == (3,)
    assert not check.is_due(CHECK_STEPS, CHECK_STEPS)
    assert check.checksum().item() == 0.0
    shared = check_of(0, one=(0, 1))
    assert [step for step in range(40) if shared.is_due(step, step // 10 * 10)] == [10, 16, 20, 30, 32]


def test_what_differs_again_soon_is_not_repaired_again() -> None:
    check = ReplicaCheck(weights_of(0, one=(0, 1, 2)), corrupted=(40, 0))
    soon = check.find_difference(40 + RECURRENCE_STEPS, (1.0, 2.0, 2.0))
    assert soon == Difference(104, [0], (0, 1, 2))
    assert check.is_recurrence(soon)
    assert check.find_difference(120, (2.0, 2.0, 2.0)) is None
    later = check.find_difference(136, (2.0, 2.0, 1.0))
    assert later is not None
    assert not check.is_recurrence(later)


def evidence_of(before: ReplicaEvidence, *, changed: dict[str, tuple[float, ...]]) -> Resolution | None:
    """What ranks 0 and 1 find when they take steps 3 and 4 again with these figures changed."""
    again = ReplicaEvidence((0, 1), before.rows)
    figures = {"own": (1.0, 2.0), "sum": (5.0, 5.0), "parameters": (7.0, 8.0)} | changed
    found = [again.add(step, name, values) for step in (3, 4) for name, values in figures.items()]
    return next(iter(filter(None, found)), None)


def test_the_first_figure_that_is_another_one_names_the_replica_that_was_wrong() -> None:
    before = ReplicaEvidence((0, 1), ())
    for name, values in (("own", (1.0, 2.0)), ("sum", (5.0, 5.0)), ("parameters", (7.0, 8.0))):
        assert before.add(3, name, values) is None
    assert evidence_of(before, changed={}) is None
    assert evidence_of(before, changed={"parameters": (7.0, 7.0)}) == Resolution(3, "parameters", [1], (0, 1))
    found = evidence_of(before, changed={"sum": (4.0, 5.0), "parameters": (9.0, 9.0)})
    assert found == Resolution(3, "sum", [0], (0, 1))
    assert str(found).startswith("before the restart, rank 0 had another gradient after its sum in step 4 than now")
    unclear = evidence_of(before, changed={"own": (1.5, 2.5)})
    assert unclear == Resolution(3, "own", [], (0, 1))
    assert str(unclear).endswith("no rank can be named")


def test_figures_of_other_replicas_and_from_before_an_agreement_are_no_evidence() -> None:
    before = ReplicaEvidence((0, 1), ())
    before.add(3, "own", (1.0, 2.0))
    assert ReplicaEvidence((0, 2), before.rows).add(3, "own", (4.0, 4.0, 4.0)) is None
    before.clear()
    assert ReplicaEvidence((0, 1), before.rows).add(3, "own", (4.0, 4.0)) is None


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([1], "rank 1 has other parameters after step 16 than ranks 0, 2, 3: wrong values"),
        ([1, 2], "ranks 1, 2 have other parameters after step 16 than ranks 0, 3: wrong values"),
        ([0, 1, 2, 3], "the parameters of ranks 0, 1, 2, 3 differ after step 16: one has wrong values"),
    ],
)
def test_a_difference_names_ranks_and_step(ranks: list[int], text: str) -> None:
    assert str(Difference(16, ranks, (0, 1, 2, 3))) == text


@pytest.mark.parametrize("bit", [0, 13, 30, 31])
@pytest.mark.parametrize("place", [0, 5, 6], ids=["first of a pair", "second", "last, without a partner"])
def test_each_bit_changes_the_checksum(bit: int, place: int) -> None:
    values = torch.arange(20.0)
    parameters = {"even": torch.nn.Parameter(values[:6]), "odd": torch.nn.Parameter(values[7:14])}  # begins at 28 bytes
    layouts = dict.fromkeys(parameters, SimpleNamespace(replica_ranks=(0, 1)))
    weights: Any = SimpleNamespace(trainable=parameters, layouts=layouts, mesh=SimpleNamespace(rank=0))
    check = ReplicaCheck(weights)
    before = check.checksum().item()
    parameters["odd"].detach().view(torch.int32)[place] ^= -(2**31) if bit == 31 else 2**bit
    assert check.checksum().item() != before
    assert 1 <= before <= 2**24


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    run = run_alone(tmp_path_factory.mktemp("undisturbed"), REPLICATED, processes=3, every_steps=10)
    assert run.end_class is EndClass.COMPLETED
    return run


@pytest.mark.parametrize(
    ("options", "intact"),
    [
        pytest.param({"every_steps": 8}, [[8], []], id="stored"),  # if that was complete; that of step 16 is not stored
        pytest.param({"shadow": 2}, [[14]], id="copied"),  # that of step 16 is skipped
    ],
)
def test_a_run_with_a_flipped_bit_goes_back_to_what_was_intact(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    undisturbed: FinishedRun,
    options: dict[str, Any],
    intact: list[list[int]],
) -> None:
    flip_bit(tmp_path, monkeypatch)
    run = run_alone(tmp_path / "run", REPLICATED, processes=3, restarts=1, **options)
    assert run.end_class is EndClass.COMPLETED, run.end
    assert run.events("replicas.differ") == [{"step": "16", "ranks": "1", "replicas": "0, 1, 2"}]
    (restarted,) = run.events("generation.started")
    assert restarted["end_class"] == EndClass.SILENT_CORRUPTION
    assert restarted["because"] == "rank 1 has other parameters after step 16 than ranks 0, 2: wrong values"
    assert [each["step"] for each in run.events("checkpoint.restored")] in intact
    assert run.series("train/loss") == undisturbed.series("train/loss")


def test_of_two_replicas_the_wrong_one_is_named_when_the_step_was_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flip_bit(tmp_path, monkeypatch)
    run = run_alone(tmp_path / "run", REPLICATED, processes=2, restarts=1, every_steps=8)
    assert run.end_class is EndClass.COMPLETED, run.end
    assert [event["ranks"] for event in run.events("replicas.differ")] == ["0, 1"]
    (found,) = run.events("replicas.compared")
    assert (found["step"], found["ranks"]) == ("16", "1")
    assert found["because"].startswith("before the restart, rank 1 had another gradient after its sum in step 16")


def flip_a_parameter(assignment: Assignment) -> None:
    """A worker of which rank 1 flips a bit of a parameter before step 13; stands in for `run_worker`."""
    from trainer.training import loop

    counted_tokens = loop.counted_tokens

    def flip(state: Any, batches: Any, step: int) -> object:
        if (step, assignment.rank, assignment.restart_count) == (13, 1, 0):
            parameter = next(iter(state.model.weights.trainable.values()))
            parameter.detach().view(-1)[-1:].view(torch.int32).bitwise_xor_(1 << 22)
        return counted_tokens(state, batches, step)

    loop.counted_tokens = flip
    run_worker(assignment)


def test_a_parameter_that_was_wrong_for_some_steps_is_traced_to_its_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_group, "run_worker", flip_a_parameter)
    run = run_alone(tmp_path / "run", REPLICATED, processes=2, restarts=1, every_steps=8)
    assert run.end_class is EndClass.COMPLETED, run.end
    (found,) = run.events("replicas.compared")
    assert (found["step"], found["ranks"]) == ("14", "1")
    assert "rank 1 had another gradient of its own data in step 14" in found["because"]


def run_with_a_flipped_bit(folder: Path, nodes: int) -> AgentApi:
    """A run on several nodes of which rank 1 flips a bit, with one rank each. Return the platform with its reports."""
    (folder / "records").mkdir()
    with tiny_platform(REPLICATED, processes=1, nodes=nodes) as api:
        api.begin_attempt(1)
        agents = Agents(api, folder / "attempt1", nodes, None, ("bit", "step"))
        try:
            assert set(agents.wait()) == {EndClass.COMPLETED}
        finally:
            agents.kill()
    return api


@pytest.mark.slow
def test_of_two_nodes_the_one_that_was_wrong_is_named(tmp_path: Path) -> None:
    api = run_with_a_flipped_bit(tmp_path, nodes=2)
    assert [(each["ranks"], each["node"]) for each in api.events("replicas.compared")] == [("1", "node1")]


@pytest.mark.slow
def test_only_the_node_of_the_rank_with_wrong_values_is_blamed(tmp_path: Path) -> None:
    api = run_with_a_flipped_bit(tmp_path, nodes=3)
    ends = {each["node"]: each["end_class"] for each in api.events("generation.started")}
    assert ends.pop("node1") == EndClass.SILENT_CORRUPTION
    assert set(ends.values()) <= {EndClass.COLLECTIVE_TIMEOUT, EndClass.STOPPED}


def flip_in_each_group(fault: Fault, assignment: Assignment) -> None:
    if assignment.rank == fault.rank:
        _step(fault, lambda: None)
    run_worker(assignment)


def test_a_fault_that_lasts_is_repaired_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_group, "run_worker", partial(flip_in_each_group, Fault(tmp_path, "bit", "step")))
    training = tiny_training(steps=40, parallelism={"zero": 0})
    run = run_alone(tmp_path / "run", training, processes=3, restarts=3)
    assert run.end_class is EndClass.COMPLETED, run.end
    first, second = run.events("replicas.differ")
    assert first["step"] == "16"
    assert int(second["step"]) in (16, 30), "15 steps after the start, or after the checkpoint of step 10"
    assert len(run.events("generation.started")) == 1


def test_a_bit_that_flips_in_the_last_step_does_not_reach_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flip_bit(tmp_path, monkeypatch)
    run = run_alone(tmp_path / "run", tiny_training(steps=AT_STEP + 1, parallelism={"zero": 0}), processes=2)
    assert run.end_class is EndClass.SILENT_CORRUPTION
    assert run.end["message"].startswith("the parameters of ranks 0, 1 differ after step 16: one has wrong values")
    assert [int(folder.name.split("-")[1]) for folder in run.checkpoints] == [10]


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
