"""Rendezvous of an attempt's nodes: agents join a round and get their ranks.

The messages are in trainer/contract/node_rendezvous.py. A round is complete when as many nodes have joined as the job
asked for, and the spare nodes too or SPARE_JOIN_TIMEOUT has passed. An agent that joins from another address is another
process: the round that it was in cannot continue.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models import DurationField, ExpressionWrapper, F, Max
from django.db.models.functions import Now

from athanor.artifacts import services as artifacts
from athanor.clusters.models import Node
from athanor.core.errors import FieldProblem, Invalid
from athanor.dispatch.services import spec_of
from athanor.jobs.models import Attempt, AttemptNode
from athanor.jobs.states import AttemptStatus
from athanor.specs.v1 import JobSpec
from trainer.contract.launch_plan import plan_mesh
from trainer.contract.node_rendezvous import JoinReply, JoinRequest, arrange, stages_of_nodes
from trainer.contract.parallelism import MeshSizes

SPARE_JOIN_TIMEOUT = timedelta(seconds=10)
SEEN_WITHIN = timedelta(seconds=30)  # agents ask every few seconds


def join(attempt: Attempt, asked: JoinRequest) -> JoinReply:
    """Register a node in the newest round and return the reply to its agent.

    Raises Invalid for a node that the job did not ask for.
    """
    spec = spec_of(attempt.job)
    total = spec.resources.nodes + spec.resources.spare_nodes
    if asked.node_index >= total:
        problem = FieldProblem("/node_index", "too_many_nodes", f"{asked.node_index} of a run of {total} nodes")
        raise Invalid(
            "invalid_message", problem.detail, remedy="the backend started too many agents", problems=(problem,)
        )
    with transaction.atomic():
        row = Attempt.objects.select_for_update(no_key=True).only("status", "end_report").get(pk=attempt.pk)
        if row.status == AttemptStatus.ENDED.value or row.end_report is not None:
            return JoinReply(state="over", round=asked.round)
        mine = _record(attempt, asked)
        nodes = list(
            AttemptNode.objects.filter(attempt=attempt, round=mine.round)
            .annotate(unseen=_ago("seen_at"), waited=_ago("joined_at"))
            .order_by("joined_at", "node_index")
        )
        if all(node.node_rank is None for node in nodes):
            missing = _missing(nodes, spec.resources.nodes, total)
            if missing is not None:
                return JoinReply(state="gathering", round=mine.round, missing=missing)
            _assign_ranks(attempt, spec, [node for node in nodes if node.unseen < SEEN_WITHIN])
    return _answer(attempt, asked.node_index, mine.round)


def newest_round(attempt: Attempt) -> int:
    """Return the number of the newest rendezvous round of an attempt, 0 before the first."""
    return AttemptNode.objects.filter(attempt=attempt).aggregate(newest=Max("round"))["newest"] or 0


def _record(attempt: Attempt, asked: JoinRequest) -> AttemptNode:
    """Register the node in the newest requested round."""
    newest = newest_round(attempt)
    mine = AttemptNode.objects.filter(attempt=attempt, node_index=asked.node_index).first()
    where: dict[str, Any] = {"name": asked.name, "address": asked.address, "store_port": asked.store_port}
    is_another = mine is not None and any(getattr(mine, name) != value for name, value in where.items())
    if mine is not None and mine.round == newest and mine.node_rank is not None and is_another:
        newest += 1
    round_ = max(newest, asked.round)
    if mine is not None and mine.round == round_ and not is_another:
        AttemptNode.objects.filter(pk=mine.pk).update(seen_at=Now())
        return mine
    topology = asked.topology or _known_topology(attempt, asked.name)
    where |= {"topology": topology, "joined_at": Now(), "seen_at": Now()}
    facts = {**where, "round": round_, "node_rank": None, "resume_id": ""}
    AttemptNode.objects.update_or_create(attempt=attempt, node_index=asked.node_index, defaults=facts)
    return AttemptNode.objects.get(attempt=attempt, node_index=asked.node_index)


def _known_topology(attempt: Attempt, name: str) -> list[str]:
    """Return the node's topology in the cluster's inventory, for nodes that do not report it."""
    known = Node.objects.filter(cluster__pools=attempt.job.pool_id, name=name).values_list("topology", flat=True)
    return known.first() or []


def _missing(nodes: Sequence[AttemptNode], needed: int, total: int) -> int | None:
    """Return the number of nodes to wait for, None if there are enough. Needs the annotations `unseen`, `waited`."""
    here = [node for node in nodes if node.unseen < SEEN_WITHIN]  # type: ignore[attr-defined] # annotated
    if len(here) < needed:
        return needed - len(here)
    enough_for = here[needed - 1].waited  # type: ignore[attr-defined] # as above
    return total - len(here) if len(here) < total and enough_for < SPARE_JOIN_TIMEOUT else None


def _assign_ranks(attempt: Attempt, spec: JobSpec, nodes: list[AttemptNode]) -> None:
    joins = [_join_of(node) for node in nodes]
    placed = arrange(joins, spec.resources.nodes, _stages(spec))
    newest = artifacts.newest_checkpoint_row(attempt.job)
    for rank, each in enumerate(placed):
        mine = AttemptNode.objects.filter(attempt=attempt, node_index=each.node_index)
        mine.update(node_rank=rank, resume_id=newest.id if newest else "")


def _stages(spec: JobSpec) -> int:
    if spec.training is None:
        return 1
    mesh = plan_mesh(spec.training, spec.training.tokenizer.vocab_size, spec.resources.world_size)
    return stages_of_nodes(mesh, spec.resources.processes_per_node) if isinstance(mesh, MeshSizes) else 1


def _answer(attempt: Attempt, node_index: int, round_: int) -> JoinReply:
    placed = AttemptNode.objects.filter(attempt=attempt, round=round_, node_rank__isnull=False).order_by("node_rank")
    nodes = list(placed)
    mine = next((node for node in nodes if node.node_index == node_index), None)
    if mine is None or mine.node_rank is None:
        return JoinReply(state="spare", round=round_)
    return JoinReply(
        state="placed",
        round=round_,
        node_rank=mine.node_rank,
        store_host=nodes[0].address,
        store_port=nodes[0].store_port,
        nodes=[_join_of(node) for node in nodes],
        resume=artifacts.checkpoint_manifest(mine.resume_id) if mine.resume_id else None,
    )


def _join_of(node: AttemptNode) -> JoinRequest:
    return JoinRequest(
        node_index=node.node_index,
        name=node.name,
        address=node.address,
        store_port=node.store_port,
        topology=node.topology,
        round=node.round,
    )


def _ago(field: str) -> "ExpressionWrapper[Any]":
    return ExpressionWrapper(Now() - F(field), DurationField())
