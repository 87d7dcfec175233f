"""A step with an unusual loss or gradient is computed again: corruption is repaired and named, unusual data is not."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.runs import MIXTURE, FinishedRun, run_alone, tiny_training
from trainer.agent import worker_group
from trainer.agent.worker_process import run_worker
from trainer.contract.optimisation import GradientWatchSpec
from trainer.contract.parallelism import MeshSizes
from trainer.contract.run import EndClass
from trainer.parallel.mesh import Mesh
from trainer.reporting.gradient_watch import MIN_STEPS, GradientWatch
from trainer.reporting.stats import StepStats
from trainer.reporting.suspicion import (
    REST_STEPS,
    OtherRanks,
    StepGate,
    StepLimits,
    compare,
    find_lasting_fault,
)
from trainer.resilience.assignment import Assignment

AT_STEP = 12  # from 0
LIMITS = StepLimits(skip=inf, loss=inf, norm=10.0)


def stats(
    loss: float = 2.0, norm: float = 1.0, own_norms: tuple[float, ...] = (0.5, 0.75), **changes: Any
) -> StepStats:
    two = (0.0, 0.0)
    figures = (two, two, two, two, two, own_norms, two, (), (loss,))
    made = StepStats(7, loss, norm, True, False, 0, 0, 0, 0, 0, 0, 0, *figures)
    return replace(made, **changes)


def test_the_rank_with_another_gradient_is_named_with_both_norms() -> None:
    found = compare(stats(norm=inf, own_norms=(0.5, inf)), stats(), "why", is_exact=True)
    assert (found.ranks, found.is_same) == ([1], False)
    assert str(found) == (
        "rank 1 computed a gradient of norm inf in step 8, and then of norm 0.75, from the same parameters and data"
    )


def test_no_rank_is_named_where_only_the_sum_differs() -> None:
    found = compare(stats(norm=99.0), stats(), "why", is_exact=True)
    assert (found.ranks, found.is_same) == ([], False)
    assert str(found).endswith("a gradient of norm 99, and when it was computed again 2 and 1; no rank can be named")


@pytest.mark.parametrize("value", [50.0, nan, inf])
def test_equal_results_are_no_corruption(value: float) -> None:
    found = compare(stats(nan, value, (value, 0.5)), stats(nan, value, (value, 0.5)), "why", is_exact=True)
    assert found.is_same
    assert str(found).startswith("why; the step was computed again with the same result")


def test_sums_that_depend_on_timing_may_differ_a_little() -> None:
    nearly = stats(norm=1.001, own_norms=(0.5001, 0.75))
    assert compare(nearly, stats(), "why", is_exact=False).is_same
    assert compare(nearly, stats(), "why", is_exact=True).ranks == [0]
    assert compare(stats(own_norms=(0.4, 0.75)), stats(), "why", is_exact=False).ranks == [0]


def elsewhere(shift: int, *norms_by_data: float) -> OtherRanks:
    """The result of a step in which each rank has the data of the rank so many places further. `norms_by_data`: of the
    gradient of each rank's own data."""
    sources = [(rank + shift) % len(norms_by_data) for rank in range(len(norms_by_data))]
    return OtherRanks(stats(own_norms=tuple(norms_by_data[source] for source in sources)), sources)


@pytest.mark.parametrize(
    ("own", "others", "ranks"),
    [
        ((1.0, 2.0, 3.0), [(1.0, 2.05, 3.0)], None),
        ((1.0, inf, 3.0), [(1.0, nan, 3.0)], None),
        ((1.0, 50.0, 3.0), [(1.0, 2.0, 3.0), (1.0, 2.0, 3.0)], [1]),
        ((1.0, nan, 3.0), [(1.0, 2.0, 40.0), (1.0, 2.0, 3.0)], [1]),  # rank 1 has the data of rank 2 the first time
        ((1.0, 2.0, 3.0), [(1.0, 2.0, 40.0), (1.0, 2.0, 3.0)], [1]),
        ((1.0, 2.0, 3.0), [(1.0, 2.0, 40.0), (1.0, 2.0, 9.0)], []),  # three results of the same data
        ((1.0, 50.0), [(1.0, 2.0)], [1]),
        ((1.0, 50.0), [(60.0, 2.0)], [1]),
        ((1.0, 50.0), [(0.5, 2.0)], []),  # rank 0 is wrong with its own data, and right with that of rank 1
    ],
)
def test_the_ranks_that_no_other_confirms_are_wrong(
    own: tuple[float, ...], others: list[tuple[float, ...]], ranks: list[int] | None
) -> None:
    moved = [elsewhere(shift, *norms) for shift, norms in enumerate(others, 1)]
    fault = find_lasting_fault(stats(own_norms=own), moved)
    assert (None if fault is None else fault.ranks) == ranks
    same = compare(stats(own_norms=own), stats(own_norms=own), "why", moved, is_exact=True)
    assert same.lasting == fault
    repaired = compare(stats(own_norms=own), stats(own_norms=(7.0, *own[1:])), "why", moved, is_exact=True)
    assert repaired.lasting is None, "it was corrupted once"


def test_the_norms_of_all_ranks_are_the_evidence() -> None:
    fault = find_lasting_fault(stats(own_norms=(1.0, 50.0, 3.0)), [elsewhere(1, 1, 2, 3), elsewhere(2, 1, 2, 3)])
    assert fault is not None
    assert fault.because == (
        "ranks computed different gradients, of the data of rank 1 in step 8: rank 1 of norm 50, rank 0 of norm 2, "
        "rank 2 of norm 2"
    )


@pytest.mark.parametrize(
    "sizes", [MeshSizes(replicate=2, shard=3, zero=3), MeshSizes(pipeline=2, replicate=3, context=2, tensor=2)]
)
@pytest.mark.parametrize("shift", [1, 2])
def test_data_moves_between_ranks_that_differ_in_nothing_else(sizes: MeshSizes, shift: int) -> None:
    meshes = [Mesh(rank, sizes.world, 0, torch.device("cpu"), sizes) for rank in range(sizes.world)]
    for mesh, source in zip(meshes, meshes[0].data_moved_by(shift), strict=True):
        data = ("replicate", "shard")
        assert source in mesh.peers(*data)
        assert meshes[source].coordinate(*data) == (mesh.coordinate(*data) + shift) % sizes.data


@pytest.mark.parametrize(
    ("loss", "norm", "because"),
    [
        (2.0, 10.5, "the gradient's norm 10.5 is above 10"),
        (2.0, inf, "the gradient's norm is not finite"),
        (nan, 1.0, "the loss is not finite"),
        (2.0, 10.0, None),
    ],
)
def test_the_device_and_the_host_hold_the_same_steps_back(loss: float, norm: float, because: str | None) -> None:
    assert LIMITS.exceeded(stats(loss, norm)) == because
    gate = StepGate(torch.device("cpu"))
    applied, held = gate.decide(torch.tensor(loss), torch.tensor(norm), LIMITS, may_hold=True)
    assert (applied.item(), held.item()) == (because is None, because is not None)
    applied, _ = gate.decide(torch.tensor(2.0), torch.tensor(1.0), LIMITS, may_hold=True)
    assert applied.item() == (because is None), "what follows is held back, too"
    gate.release()
    applied, _ = gate.decide(torch.tensor(2.0), torch.tensor(1.0), LIMITS, may_hold=True)
    assert applied.item()


def test_limits_are_compared_in_the_precision_of_the_device() -> None:
    limits = StepLimits(skip=inf, loss=inf, norm=0.1 + 1e-9)  # between two numbers in fp32
    for norm in (torch.tensor(0.1), torch.nextafter(torch.tensor(0.1), torch.tensor(1.0))):
        _, held = StepGate(norm.device).decide(torch.tensor(1.0), norm, limits, may_hold=True)
        assert held.item() == (limits.exceeded(stats(norm=norm.item())) is not None)


def test_an_unusual_norm_is_one_that_is_reported_or_skipped() -> None:
    watch = GradientWatch(GradientWatchSpec(absolute=100.0, relative=4.0))
    for _ in range(MIN_STEPS):
        assert watch.usual_limit == 100.0
        watch.check(2.0)
    assert watch.usual_limit == 8.0
    assert GradientWatch(GradientWatchSpec(absolute=None)).usual_limit == inf


@dataclass(frozen=True)
class Flip:
    """A worker of which rank 1 flips the highest bit of the exponent of a number in the backward pass of step
    `AT_STEP`, the first time that it is computed, or `always`; its statistics are read `lag` steps later, as on a GPU.
    Stands in for `run_worker`."""

    rank: int = 1
    always: bool = False
    lag: int = 0

    def __call__(self, assignment: Assignment) -> None:
        from trainer.reporting.stats import StatsPipe
        from trainer.training import loop

        counted_tokens, make_pipe, done = loop.counted_tokens, StatsPipe.__init__, []

        def flip_later(state: Any, batches: Any, step: int) -> object:
            if step == AT_STEP and assignment.rank == self.rank and (self.always or not done):
                done.append(step)
                flip_next_gradient(state.model.stages[0])
            return counted_tokens(state, batches, step)

        def make_lagging(pipe: StatsPipe, *arguments: Any) -> None:
            make_pipe(pipe, *arguments)
            pipe.lag = self.lag

        loop.counted_tokens, StatsPipe.__init__ = flip_later, make_lagging
        run_worker(assignment)


def flip_next_gradient(stage: Any) -> None:
    """Flip it in the gradient of an activation of this stage's first block, of the next micro-batch."""
    block = next(iter(stage.blocks.values()))

    def flip(gradient: torch.Tensor) -> torch.Tensor:
        flat = gradient.clone(memory_format=torch.contiguous_format).float()
        numbers = flat.view(-1)
        numbers[numbers.abs().argmax()].view(torch.int32).bitwise_xor_(1 << 30)
        return flat.to(gradient.dtype)

    def watch(module: Any, arguments: Any, output: torch.Tensor) -> None:
        if output.requires_grad:
            handle.remove()
            output.register_hook(flip)

    handle = block.attention.register_forward_hook(watch)


def run_both(
    folder: Path, monkeypatch: pytest.MonkeyPatch, flip: Callable[[Assignment], None], processes: int, **changes: Any
) -> tuple[FinishedRun, FinishedRun]:
    """Return an undisturbed run and one with a flipped bit."""
    training = tiny_training(**changes)
    undisturbed = run_alone(folder / "undisturbed", training, processes=processes)
    monkeypatch.setattr(worker_group, "run_worker", flip)
    run = run_alone(folder / "run", training, processes=processes)
    assert run.end_class is EndClass.COMPLETED, run.end
    return undisturbed, run


def check_repaired(undisturbed: FinishedRun, run: FinishedRun, ranks: str) -> None:
    (event,) = run.events("gradient.corrupted")
    assert (event["step"], event["ranks"]) == (str(AT_STEP + 1), ranks), event
    assert run.events("step.skipped") == run.events("step.recomputed") == run.events("generation.started") == []
    for name in ("train/loss", "train/gradient_norm", "train/skipped_steps", "evaluation/loss"):
        assert run.series(name) == undisturbed.series(name)


@pytest.mark.parametrize(
    ("processes", "changes"),
    [
        (2, {"parallelism": {"zero": 3, "micro_batch_sequences": 2}}),
        (2, {"parallelism": {"replicate": 2, "compression": {"kind": "powersgd", "rank": 2}}}),
        pytest.param(2, {"parallelism": {"zero": 0, "micro_batch_sequences": 2}}, marks=pytest.mark.slow),
        pytest.param(2, {"parallelism": {"zero": 1}, "optimizer": {"name": "muon"}}, marks=pytest.mark.slow),
        pytest.param(2, {"parallelism": {"zero": 2}, "precision": "bf16"}, marks=pytest.mark.slow),
        pytest.param(2, {"parallelism": {"replicate": 2, "compression": {"kind": "int8"}}}, marks=pytest.mark.slow),
        pytest.param(2, {"model": {"shape": MIXTURE}, "parallelism": {"expert": 2, "zero": 3}}, marks=pytest.mark.slow),
        pytest.param(4, {"parallelism": {"replicate": 2, "zero": 3}}, marks=pytest.mark.slow),
        pytest.param(2, {"optimizer": {"offload": True}, "parallelism": {"zero": 1}}, marks=pytest.mark.slow),
        pytest.param(
            2, {"activation_checkpointing": "full", "batch_ramp": {"start_tokens_per_step": 64, "steps": 50}},
            marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_a_bit_that_flips_before_the_sum_is_repaired_and_its_rank_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int, changes: dict[str, Any]
) -> None:
    check_repaired(*run_both(tmp_path, monkeypatch, Flip(), processes, **changes), ranks="1")


@pytest.mark.parametrize("parallelism", [{"tensor": 2, "zero": 0}, {"context": 2, "zero": 3}, {"pipeline": 2}])
@pytest.mark.slow
def test_ranks_that_exchange_activations_are_named_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parallelism: dict[str, Any]
) -> None:
    check_repaired(*run_both(tmp_path, monkeypatch, Flip(), 2, parallelism=parallelism), ranks="0, 1")


def test_steps_that_a_gpu_computes_meanwhile_are_taken_again_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_repaired(*run_both(tmp_path, monkeypatch, Flip(rank=0, lag=2), 1), ranks="0")


def test_a_gradient_that_is_large_again_is_no_corruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_group, "run_worker", Flip(rank=0, always=True, lag=2))
    run = run_alone(tmp_path / "run", tiny_training())
    assert run.end_class is EndClass.COMPLETED, run.end
    (event,) = run.events("step.recomputed")
    assert (event["step"], run.events("gradient.corrupted")) == (AT_STEP + 1, [])
    assert "computed again with the same result" in event["because"]
    assert [each["step"] for each in run.events("step.skipped")] == [AT_STEP + 1]


@pytest.mark.parametrize(
    ("processes", "changes"),
    [
        (3, {"tokens_per_step": 768, "parallelism": {"zero": 3}}),
        pytest.param(2, {"parallelism": {"zero": 0, "micro_batch_sequences": 2}}, marks=pytest.mark.slow),
        pytest.param(4, {"parallelism": {"tensor": 2, "zero": 1}}, marks=pytest.mark.slow),
    ],
)
def test_a_fault_that_recurs_is_found_by_other_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int, changes: dict[str, Any]
) -> None:
    monkeypatch.setattr(worker_group, "run_worker", Flip(always=True))
    run = run_alone(tmp_path / "run", tiny_training(**changes), processes=processes)
    assert run.end_class is EndClass.NODE_UNFIT, run.end
    (event,) = run.events("gradient.corrupted")
    ranks = "0, 1" if "tensor" in changes["parallelism"] else "1"  # they exchange activations
    assert (event["step"], event["ranks"]) == (str(AT_STEP + 1), ranks), event
    assert "rank 1 of norm" in event["because"]
    assert run.events("step.recomputed") == []
    assert max(run.series("train/loss")) == AT_STEP


@pytest.mark.parametrize(
    ("processes", "changes"),
    [
        (2, {"parallelism": {"zero": 3, "micro_batch_sequences": 2}}),
        (2, {"parallelism": {"replicate": 2, "compression": {"kind": "powersgd", "rank": 2}}}),
        pytest.param(3, {"tokens_per_step": 768, "parallelism": {"zero": 1}}, marks=pytest.mark.slow),
        pytest.param(4, {"parallelism": {"pipeline": 2, "zero": 0}}, marks=pytest.mark.slow),
        pytest.param(4, {"parallelism": {"tensor": 2, "zero": 3}}, marks=pytest.mark.slow),
        pytest.param(2, {"model": {"shape": MIXTURE}, "parallelism": {"zero": 3}}, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_computing_a_step_on_other_ranks_changes_nothing(
    tmp_path: Path, processes: int, changes: dict[str, Any]
) -> None:
    plain = run_alone(tmp_path / "plain", tiny_training(**changes), processes=processes)
    watched = tiny_training(**changes, optimizer={"gradient_watch": {"absolute": 1e-6}})
    run = run_alone(tmp_path / "run", watched, processes=processes)
    assert run.end_class is EndClass.COMPLETED, run.end
    assert all("by other ranks too, with the same result" in each["because"] for each in run.events("step.recomputed"))
    assert [event["step"] for event in run.events("step.recomputed")] == [1]
    assert run.events("gradient.corrupted") == []
    for name in ("train/loss", "train/gradient_norm", "evaluation/loss"):
        assert run.series(name) == plain.series(name)


def test_a_run_in_which_every_step_is_unusual_computes_few_of_them_twice(tmp_path: Path) -> None:
    watch = {"gradient_watch": {"absolute": 1e-6}}
    training = tiny_training(steps=2 * REST_STEPS + 2, optimizer=watch, evaluation={"every_steps": 200, "sequences": 8})
    run = run_alone(tmp_path / "run", training, every_steps=1000)
    assert run.end_class is EndClass.COMPLETED, run.end
    assert [event["step"] for event in run.events("step.recomputed")] == [1, 1 + REST_STEPS, 1 + 2 * REST_STEPS]
    assert run.series("train/skipped_steps")[training.steps] == 0.0
