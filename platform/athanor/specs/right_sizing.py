"""Advice on the resources of a job like one that ran: fewer slots, no spare node, larger micro-batches. Pure.

Each piece of advice is a change of the spec that `fit` accepts for the same pool, by the same estimates as a
submission. What it saves is an upper bound: fewer devices may take longer than the same work on more of them suggests.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from athanor.specs import fit
from athanor.specs.fit import PoolShape
from athanor.specs.v1 import JobSpec
from trainer.contract.launch_plan import micro_batch_size, plan_mesh
from trainer.contract.micro_batch import find_largest_micro_batch

MAX_UTILISATION = 0.8
"""Utilisation that fewer slots may have, if they do the same work in the same time."""
MIN_IDLE_SHARE = 0.05
"""Share of the cost from which idle slots of spare nodes are worth a change."""


class Advice(StrEnum):
    """What to change."""

    FEWER_SLOTS = "fewer_slots"
    NO_SPARE_NODES = "no_spare_nodes"
    LARGER_MICRO_BATCH = "larger_micro_batch"


@dataclass(frozen=True)
class RunFacts:
    """What a run cost, in any unit, and how it used its slots.

    `utilisation`: mean of its accelerators, or of its nodes' processors if it held all their slots; None if unknown.
    `lost_a_node`: whether a spare node may have been of use.
    """

    cost: int
    training_cost: int
    idle_cost: int
    utilisation: float | None
    lost_a_node: bool


@dataclass(frozen=True)
class Suggestion:
    """A change of the spec as a JSON merge patch. `saving`: at most, in the unit of the cost."""

    advice: Advice
    message: str
    changes: dict[str, Any]
    saving: int


def suggestions(spec: JobSpec, pool: PoolShape, facts: RunFacts) -> list[Suggestion]:
    """Return what to change in a job like this one, the largest saving first. Empty for jobs that do not train."""
    if spec.training is None or facts.cost <= 0:
        return []
    found = [*_fewer_slots(spec, pool, facts), *_no_spare_nodes(spec, pool, facts), *_micro_batch(spec, pool, facts)]
    return sorted((each for each in found if each.saving > 0), key=lambda each: -each.saving)


def merge_patch(document: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with a JSON merge patch applied (RFC 7396)."""
    merged = dict(document)
    for name, value in changes.items():
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, Mapping):
            before = merged.get(name)
            merged[name] = merge_patch(before if isinstance(before, Mapping) else {}, value)
        else:
            merged[name] = value
    return merged


def _changed(spec: JobSpec, pool: PoolShape, changes: dict[str, Any]) -> JobSpec | None:
    """Return the spec with a change, None if it is invalid or does not fit."""
    try:
        changed = JobSpec.model_validate(merge_patch(spec.model_dump(mode="json"), changes))
    except ValueError:
        return None
    return None if fit.rejections(changed, pool) else changed


def _fewer_slots(spec: JobSpec, pool: PoolShape, facts: RunFacts) -> Iterator[Suggestion]:
    """Yield the smallest number of nodes and processes, by halves, on which the same work fits."""
    if facts.utilisation is None:
        return
    resources, best = spec.resources, None
    nodes, processes = resources.nodes, resources.processes_per_node
    while nodes > 1 or processes > 1:
        nodes, processes = (nodes // 2, processes) if nodes > 1 else (1, processes // 2)
        share = nodes * processes / resources.world_size
        if facts.utilisation / share > MAX_UTILISATION:
            break
        changes: dict[str, Any] = {"nodes": nodes, "processes_per_node": processes}
        if nodes == 1:
            changes |= {"spare_nodes": 0}
        if resources.min_nodes is not None and resources.min_nodes >= nodes:
            changes |= {"min_nodes": None}
        if _changed(spec, pool, {"resources": changes}) is not None:
            best = share, changes
    if best is not None:
        share, changes = best
        yield Suggestion(
            Advice.FEWER_SLOTS,
            f"The slots were {facts.utilisation:.0%} in use: {changes['nodes']} nodes with "
            f"{changes['processes_per_node']} processes each can do the same work at "
            f"{facts.utilisation / share:.0%}, and the job fits them.",
            {"resources": changes},
            round((facts.cost - facts.idle_cost) * (1 - share)),
        )


def _no_spare_nodes(spec: JobSpec, pool: PoolShape, facts: RunFacts) -> Iterator[Suggestion]:
    changes = {"resources": {"spare_nodes": 0}}
    if not spec.resources.spare_nodes or facts.lost_a_node or facts.idle_cost < MIN_IDLE_SHARE * facts.cost:
        return
    if _changed(spec, pool, changes) is not None:
        yield Suggestion(
            Advice.NO_SPARE_NODES,
            f"No node was lost, and idle slots cost {facts.idle_cost / facts.cost:.0%} of the job. Without spare "
            "nodes, a lost node ends the attempt, and the job continues from its newest checkpoint.",
            changes,
            facts.idle_cost,
        )


def _micro_batch(spec: JobSpec, pool: PoolShape, facts: RunFacts) -> Iterator[Suggestion]:
    """Yield a larger micro-batch if memory is free and the accelerators are not busy all the time."""
    training = spec.training
    if training is None or pool.accelerator == "cpu" or facts.utilisation is None:
        return
    size, vocab = training.parallelism.micro_batch_sequences, training.tokenizer.vocab_size
    if size == "auto" or facts.utilisation > MAX_UTILISATION:
        return
    parallelism = training.parallelism.model_copy(update={"micro_batch_sequences": "auto"})
    automatic = spec.model_copy(update={"training": training.model_copy(update={"parallelism": parallelism})})
    resolved = fit.resolve(automatic, pool).training
    mesh = plan_mesh(resolved, vocab, spec.resources.world_size) if resolved is not None else []
    device = pool.device_bytes_per_process(spec.resources.processes_per_node)
    if resolved is None or isinstance(mesh, list) or device is None:
        return
    bound = find_largest_micro_batch(resolved, mesh, vocab, device, spec.evaluation)
    largest = micro_batch_size(resolved, mesh, vocab, bound=bound)
    changes = {"training": {"parallelism": {"micro_batch_sequences": largest}}}
    changed = _changed(spec, pool, changes) if largest > size else None
    need = fit.estimate(changed, pool) if changed is not None else None
    if need is not None and need.memory_bytes_per_process <= device:
        yield Suggestion(
            Advice.LARGER_MICRO_BATCH,
            f"The accelerators were {facts.utilisation:.0%} in use, and micro-batches of {largest} sequences instead "
            f"of {size} need about {need.memory_bytes_per_process / 2**30:.1f} of {device / 2**30:.1f} GiB.",
            changes,
            round(facts.training_cost * (1 - facts.utilisation)),
        )
