"""The same numbers on every mesh: a choice of meshes that together meet every axis, schedule and pair of axes.

All of them: `make matrix`.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.trainer.equality import Case, Outcome, compare, differences, take_step
from tests.trainer.mutations import MUTATIONS, take_mutated_step
from tests.trainer.ranks import RankPool
from tests.trainer.stored_losses import STORED_CASES, TOLERANCES, machine, stored, take_steps

RANKS = 8


def case(model: str, world: int, *, packed: bool = False, **parallelism: Any) -> Case:
    return Case(model, world, parallelism, packed)


CASES = [
    case("dense", 2, zero=0, micro_batch_sequences=3),
    case("tied", 3, zero=3, packed=True),
    case("moe", 2, zero=2, micro_batch_sequences=2, packed=True),
    case("dense", 4, zero=1, replicate=2, micro_batch_sequences=1),
    case("tied", 4, zero=3, replicate=2, packed=True),
    case("moe", 4, zero=0, expert=4, packed=True),
    case("moe", 4, zero=3, expert=2),
    case("moe", 4, zero=3, replicate=2, expert=2, packed=True),
    case("dense", 4, tensor=4, packed=True),
    case("tied", 4, tensor=2, zero=3),
    case("moe", 4, tensor=2, zero=0, expert=2),
    case("dense", 4, context=4, zero=3),
    case("dense", 4, context=4, context_attention="ulysses", packed=True),
    case("tied", 4, context=2, zero=0, packed=True),
    case("moe", 4, context=4, expert=4, zero=3, packed=True),
    case("dense", 4, context=2, tensor=2, context_attention="ulysses", packed=True),
    case("tied", 4, pipeline=4, micro_batch_sequences=3, packed=True),
    case("dense", 4, pipeline=2, pipeline_schedule="gpipe", zero=3, micro_batch_sequences=2),
    case("tied", 4, pipeline=4, pipeline_schedule="interleaved_1f1b", micro_batch_sequences=2),
    case("moe", 4, pipeline=2, pipeline_schedule="interleaved_zero_bubble", zero=1, micro_batch_sequences=1),
    case("tied", 4, pipeline=2, pipeline_schedule="zbv_zero_bubble", tensor=2, micro_batch_sequences=2, packed=True),
    case("tied", 4, pipeline=4, pipeline_schedule="dualpipe_v", micro_batch_sequences=1),
    case("dense", 4, pipeline=2, pipeline_schedule="looped_bfs", context=2, zero=3, micro_batch_sequences=2),
    case("dense", 2, pipeline=2, stage_layers=[6, 2], micro_batch_sequences=4),
    case("tied", 4, zero=0, context=2, compression={"kind": "int8", "start_step": 9}),
    case("dense", 4, zero=3, replicate=2, compression={"kind": "powersgd", "start_step": 9}),
    case("qwen2", 4, tensor=2, zero=3, packed=True),
    case("qwen2", 4, pipeline=2, context=2, zero=0, micro_batch_sequences=2, packed=True),
    case("glm", 4, tensor=2, expert=2, zero=3, packed=True),
    case("glm", 4, context=2, context_attention="ulysses", expert=4, zero=3),
    case("mistral", 4, context=2, tensor=2, context_attention="ulysses", packed=True),
    case("mistral", 2, context=2, zero=0),
    case("mistral", 4, context=4, zero=3, packed=True),
    case("mistral", 4, context=2, tensor=2, packed=True),
    case("deepseek", 4, tensor=4, zero=0, packed=True),
    case("deepseek", 4, context=2, tensor=2, tensor_overlap=True, zero=3, packed=True),
    case("deepseek", 8, pipeline=2, context=2, tensor=2, expert=2, context_attention="ulysses", zero=1,
         micro_batch_sequences=2),
    case("gemma2", 4, context=2, tensor=2, packed=True),
    case("gpt-oss", 4, tensor=2, expert=2, zero=3, packed=True),
    case("gpt-oss", 4, context=2, context_attention="ulysses", tensor=2, zero=0, packed=True),
    case("gpt-oss", 4, context=4, zero=1),
    case("gpt-oss", 4, pipeline=2, context=2, zero=0, micro_batch_sequences=2, packed=True),
    case("gemma2-window", 4, context=2, tensor=2, packed=True),
    case("gemma2-window", 4, context=4, zero=0),
    case("llama4", 4, context=2, tensor=2, zero=3, packed=True),
    case("llama4", 4, context=2, context_attention="ulysses", expert=2, zero=1, packed=True),
    case("llama4", 4, pipeline=2, tensor=2, zero=0, micro_batch_sequences=2, packed=True),
    case("moe", 8, pipeline=2, context=2, tensor=2, expert=2, zero=3, micro_batch_sequences=2, packed=True),
    case("moe", 8, pipeline=2, zero=1, replicate=2, expert=2, micro_batch_sequences=1),
]  # fmt: skip


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(RANKS) as pool:
        yield pool


@pytest.fixture(scope="module")
def references() -> dict[Any, Outcome]:
    """Outcomes of one rank."""
    return {}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_mesh_computes_what_one_rank_does(pool: RankPool, references: dict[Any, Outcome], case: Case) -> None:
    assert compare(pool, case, references) == []


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_planted_fault_is_seen(pool: RankPool, references: dict[Any, Outcome], name: str) -> None:
    case = MUTATIONS[name].case
    assert compare(pool, case, references) == [], "without the fault"
    mutated = pool.run(case.world, take_mutated_step, name)[0]
    assert differences(mutated, references[case.model, case.packed]) != []


def test_the_same_mesh_gives_the_same_bits_twice(pool: RankPool) -> None:
    case = Case("moe", 4, {"tensor": 2, "zero": 3, "expert": 2}, packed=True)
    first, second = (pool.run(4, take_step, case)[0] for _ in range(2))
    assert (first.loss, first.norm) == (second.loss, second.norm)
    assert {n: g.tobytes() for n, g in first.gradients.items()} == {n: g.tobytes() for n, g in second.gradients.items()}


@pytest.mark.parametrize("case", STORED_CASES, ids=str)
def test_losses_are_those_that_were_stored(pool: RankPool, case: Case) -> None:
    """`tests/trainer/stored_losses.py` says when and how to store them again."""
    found, kept = pool.run(case.world, take_steps, case)[0], stored()
    if machine() in kept:
        assert found == kept[machine()][str(case)]
    for losses in kept.values():
        numbers, expected = ([float.fromhex(each) for each in some] for some in (found, losses[str(case)]))
        assert numbers == pytest.approx(expected, rel=TOLERANCES[case.spec().computes_in_bf16])
