"""Exchanges inside products: the numbers of one rank, by one after the other and by torch's fused operators."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.distributed import _symmetric_memory as symmetric_memory

from tests.trainer.equality import VOCABULARY, Case, Outcome, compare, differences, take_step
from tests.trainer.ranks import RankPool
from tests.trainer.runs import tiny_training
from trainer.contract.launch_plan import plan_mesh
from trainer.parallel import overlap
from trainer.parallel.mesh import Mesh


def case(model: str, world: int, *, packed: bool = False, **parallelism: Any) -> Case:
    return Case(model, world, {"tensor": 2, "tensor_overlap": True, **parallelism}, packed)


CASES = [
    case("dense", 2, micro_batch_sequences=3, packed=True),
    case("tied", 4, tensor=4),
    case("moe", 4, zero=3, expert=2, packed=True),
    case("dense", 4, context=2),
    case("tied", 4, pipeline=2, pipeline_schedule="zbv_zero_bubble", micro_batch_sequences=2),
    Case("dense", 2, {"tensor": 2, "tensor_overlap": True}, training={"activation_checkpointing": "selective"}),
]


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(4) as started:
        yield started


@pytest.fixture(scope="module")
def references() -> dict[Any, Outcome]:
    return {}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_overlapping_products_compute_what_one_rank_does(
    pool: RankPool, references: dict[Any, Outcome], case: Case
) -> None:
    assert compare(pool, case, references) == []


def take_fused_step(mesh: Mesh, case: Case) -> tuple[Outcome, set[str]]:
    """As on GPUs that reach each other's memory, with torch's own stand-ins for the operators they have for that; and
    which of these were called."""
    called: set[str] = set()

    def counted(name: str, stand_in: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            called.add(name)
            return stand_in(*arguments, **named)

        return call

    library = torch.library.Library("symm_mem", "IMPL")
    has_fused_matmuls = overlap.has_fused_matmuls
    try:
        for name in ("fused_all_gather_matmul", "fused_matmul_reduce_scatter"):
            library.impl(name, counted(name, getattr(symmetric_memory, f"_{name}_fallback")), "CPU")
        overlap.has_fused_matmuls = lambda mesh: True
        return take_step(mesh, case), called
    finally:
        overlap.has_fused_matmuls = has_fused_matmuls
        library._destroy()


def test_the_fused_operators_stand_where_they_belong(pool: RankPool, references: dict[Any, Outcome]) -> None:
    case = CASES[0]
    compare(pool, case, references)
    for rank, (found, called) in enumerate(pool.run(2, take_fused_step, case)):
        assert called == {"fused_all_gather_matmul", "fused_matmul_reduce_scatter"}
        if rank == 0:
            assert differences(found, references[case.model, case.packed]) == []


def without_sums(mesh: Mesh, case: Case) -> Outcome:
    """Planted: each rank keeps its own part of what is to be summed over the ranks."""
    healthy = overlap.matmul_reduce_scatter

    def unsummed(x: torch.Tensor, weight: torch.Tensor, group: Any, *, fused: bool) -> torch.Tensor:
        return torch.nn.functional.linear(x, weight).chunk(2, dim=overlap.SEQUENCE)[mesh.rank].contiguous()

    overlap.matmul_reduce_scatter = unsummed
    try:
        return take_step(mesh, case)
    finally:
        overlap.matmul_reduce_scatter = healthy


def test_a_sum_that_is_left_out_is_seen(pool: RankPool, references: dict[Any, Outcome]) -> None:
    case = CASES[0]
    compare(pool, case, references)
    assert differences(pool.run(2, without_sums, case)[0], references[case.model, case.packed]) != []


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"parallelism": {"tensor_overlap": True}}, "tensor 1"), ({"precision": "fp8"}, "precision fp8")],
)
def test_what_cannot_overlap_is_refused_with_the_reason(changes: dict[str, Any], words: str) -> None:
    training = tiny_training(**{"parallelism": {"tensor": 2, "tensor_overlap": True}, **changes})
    (problem,) = plan_mesh(training, VOCABULARY, 2)
    assert (problem.field, words in problem.message) == ("parallelism/tensor_overlap", True)
