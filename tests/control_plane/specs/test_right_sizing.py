"""Advice on the resources of a job: each change fits when it is followed, and none is given without a reason."""

from dataclasses import replace
from typing import Any

import pytest

from athanor.specs import fit
from athanor.specs.right_sizing import Advice, RunFacts, Suggestion, merge_patch, suggestions
from athanor.specs.v1 import JobSpec

POOL = fit.PoolShape("gpu", 8, nodes=16, memory_bytes_per_node=2**40, accelerator="h100",
                     accelerator_memory_bytes=80 * 2**30)  # fmt: skip
BUSY = RunFacts(cost=1000, training_cost=800, idle_cost=0, utilisation=0.95, lost_a_node=False)


def advise(spec: dict[str, Any], facts: RunFacts, pool: fit.PoolShape = POOL) -> list[Suggestion]:
    """Return the advice, after following each piece of it: the spec is valid and fits."""
    found = suggestions(JobSpec.model_validate(spec), pool, facts)
    for each in found:
        followed = JobSpec.model_validate(merge_patch(spec, each.changes))
        assert fit.rejections(followed, pool) == []
        assert 0 < each.saving < facts.cost
    return found


def gpu_spec(spec: dict[str, Any], preset: str = "llama-1m", **resources: Any) -> dict[str, Any]:
    training = {**spec["training"], "model": {"preset": preset}, "tokens_per_step": 64 * 64}
    return {**spec, "training": training, "resources": {"accelerator": "h100", **resources}}


def test_a_job_that_uses_its_slots_gets_no_advice(spec: dict[str, Any]) -> None:
    assert advise(gpu_spec(spec, nodes=2, processes_per_node=8), BUSY) == []
    unknown = replace(BUSY, utilisation=None)
    assert advise(gpu_spec(spec, nodes=2, processes_per_node=8), unknown) == [], "what is not known is no reason"


@pytest.mark.parametrize(
    ("utilisation", "nodes", "processes", "saving"),
    [(0.45, None, None, None), (0.35, 1, 8, 500), (0.15, 1, 4, 750), (0.01, 1, 1, 938)],
)
def test_slots_that_are_idle_half_of_the_time_are_halved_until_they_are_busy(
    spec: dict[str, Any], utilisation: float, nodes: int | None, processes: int | None, saving: int | None
) -> None:
    found = advise(gpu_spec(spec, nodes=2, processes_per_node=8), replace(BUSY, utilisation=utilisation))
    assert [(each.advice, each.saving) for each in found] == ([(Advice.FEWER_SLOTS, saving)] if saving else [])
    for each in found:
        assert each.changes["resources"] == {"nodes": nodes, "processes_per_node": processes, "spare_nodes": 0}


def test_fewer_slots_are_not_advised_if_the_model_does_not_fit_them(spec: dict[str, Any]) -> None:
    large = gpu_spec(spec, "llama-70b", nodes=4, processes_per_node=8)
    low = replace(BUSY, utilisation=0.01)
    (found,) = advise(large, low)
    assert found.changes["resources"] == {"nodes": 2, "processes_per_node": 8}
    assert advise(merge_patch(large, found.changes), low) == [], "8 accelerators are too few for it"


def test_the_smallest_number_of_nodes_is_removed_with_them(spec: dict[str, Any]) -> None:
    wide = gpu_spec(spec, nodes=4, processes_per_node=8, min_nodes=2, spare_nodes=1)
    (found,) = advise(wide, replace(BUSY, utilisation=0.1))
    assert found.changes["resources"] == {"nodes": 1, "processes_per_node": 4, "spare_nodes": 0, "min_nodes": None}


def test_idle_spare_nodes_are_advised_against_unless_a_node_was_lost(spec: dict[str, Any]) -> None:
    spared = gpu_spec(spec, nodes=2, processes_per_node=8, spare_nodes=1)
    idle = replace(BUSY, idle_cost=300)
    (found,) = advise(spared, idle)
    assert (found.advice, found.changes, found.saving) == (
        Advice.NO_SPARE_NODES, {"resources": {"spare_nodes": 0}}, 300,
    )  # fmt: skip
    assert advise(spared, replace(idle, lost_a_node=True)) == []
    assert advise(spared, replace(idle, idle_cost=40)) == [], "below a twentieth of the cost"


def test_a_micro_batch_that_leaves_memory_free_is_made_larger(spec: dict[str, Any]) -> None:
    small = gpu_spec(spec, processes_per_node=2)
    small["training"]["parallelism"] = {"micro_batch_sequences": 1}
    (found,) = advise(small, replace(BUSY, utilisation=0.6))
    assert (found.advice, found.saving) == (Advice.LARGER_MICRO_BATCH, 320)
    size = found.changes["training"]["parallelism"]["micro_batch_sequences"]
    assert size == 32, "the sequences of a rank in a step"
    assert advise(merge_patch(small, found.changes), replace(BUSY, utilisation=0.6)) == []
    unknown = replace(POOL, accelerator_memory_bytes=None)
    assert advise(small, replace(BUSY, utilisation=0.6), unknown) == [], "no estimate without the memory"


def test_jobs_that_do_not_train_or_cost_nothing_get_no_advice(spec: dict[str, Any]) -> None:
    low = replace(BUSY, utilisation=0.01)
    assert advise(gpu_spec(spec, nodes=2, processes_per_node=8), replace(low, cost=0)) == []
