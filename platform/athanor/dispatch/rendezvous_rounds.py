"""Rendezvous of an attempt's nodes: agents join a round and get their ranks.

The messages are in trainer/contract/node_rendezvous.py. A round is complete when as many nodes have joined as the job
asked for, and the spare nodes too or SPARE_JOIN_TIMEOUT has passed. That of a job with `min_nodes` also closes with
fewer, after START_TIMEOUT in the first round, or else SHRINK_TIMEOUT. A later round waits only for other nodes that
send heartbeats, since a lost one would not come. An agent that joins from another address is another process: the round
that it was in cannot continue.

A node that joins when a round of fewer nodes has its ranks begins the next round, if more nodes fit the job's mesh:
immediately if the ranks restart from copies in memory, or else when the next checkpoint is stored. When more nodes than
before have joined that round, it waits only for other nodes that send heartbeats, too.

A join reads and writes two rows, its own and its attempt's round, however many nodes there are; most are one statement.
Only the completion of a round reads all rows. An agent waits for its ranks in a long poll (api/agent/long_polls.py),
which asks `replies_to` for all nodes that wait.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from django.db import connection, transaction
from django.db.models import Q, QuerySet
from django.db.models.functions import Now

from athanor.artifacts import services as artifacts
from athanor.clusters.models import Node
from athanor.core import rows
from athanor.core.errors import FieldProblem, Invalid
from athanor.dispatch.services import spec_of
from athanor.jobs.models import Attempt, AttemptNode, RendezvousRound
from athanor.specs.v1 import JobSpec
from athanor.telemetry.models import Heartbeat
from trainer.contract.launch_plan import plan_mesh
from trainer.contract.manifest import CheckpointId
from trainer.contract.node_rendezvous import (
    JoinReply,
    JoinRequest,
    arrange,
    choose_num_nodes,
    count_missing,
    stages_of_nodes,
)
from trainer.contract.parallelism import MeshSizes

BEAT_WITHIN = timedelta(seconds=6)  # the last heartbeat of an agent that runs: it sends one every 5 s
SEEN_WITHIN = timedelta(seconds=30)  # since its agent last asked, or a process last held its long poll

# Written in SQL, for each node joins: the ORM would take longer to put these together than the database to run them.
ROUNDS = f"""
SELECT {rows.columns_of(RendezvousRound, "newest")},
    attempt.status = 'ended' OR attempt.end_report IS NOT NULL, statement_timestamp()
FROM jobs_rendezvousround newest JOIN jobs_attempt attempt ON attempt.id = newest.attempt_id
WHERE newest.attempt_id = ANY(%s)
"""  # noqa: S608 - names of columns
LOCKED = f"{ROUNDS} FOR NO KEY UPDATE OF newest"
NODE = f"""
SELECT {rows.columns_of(AttemptNode, "node")} FROM jobs_attemptnode node WHERE attempt_id = %s AND node_index = %s
"""  # noqa: S608 - likewise
UPSERT_NODE = """
INSERT INTO jobs_attemptnode (
    attempt_id, node_index, round, name, address, store_port, topology, joined_at, seen_at, resume_id
)
SELECT %(attempt)s, %(node_index)s, number, %(name)s, %(address)s, %(store_port)s, %(topology)s::jsonb,
    statement_timestamp(), statement_timestamp(), ''
FROM counted
ON CONFLICT (attempt_id, node_index) DO UPDATE SET
    round = excluded.round, name = excluded.name, address = excluded.address, store_port = excluded.store_port,
    topology = excluded.topology, joined_at = excluded.joined_at, seen_at = excluded.seen_at, resume_id = '',
    node_rank = NULL, has_left = FALSE
"""
# The usual join: another node of a round that lacks more. All joins of an attempt wait for one row: held over several
# statements, while the thread that holds it waits for its turn in Python, it made the joins of 256 nodes take 4.7 s
# instead of 1.2 s.
JOIN = f"""
WITH counted AS (
    UPDATE jobs_rendezvousround newest SET joined = joined + 1,
        enough_at = CASE WHEN joined + 1 >= COALESCE(newest.min_nodes, newest.needed) THEN statement_timestamp() END
    FROM jobs_attempt attempt
    WHERE newest.attempt_id = %(attempt)s AND attempt.id = newest.attempt_id AND attempt.status <> 'ended'
        AND attempt.end_report IS NULL AND newest.number >= %(asked)s AND newest.first_node IS NULL
        AND newest.total > %(node_index)s AND newest."left" = 0 AND newest.joined + 1
            < CASE WHEN newest.number > 1 THEN COALESCE(newest.min_nodes, newest.needed) ELSE newest.needed END
        AND NOT EXISTS (
            SELECT FROM jobs_attemptnode node
            WHERE node.attempt_id = %(attempt)s AND node.node_index = %(node_index)s AND node.round = newest.number
        )
    RETURNING newest.number, newest.needed - newest.joined AS missing
)
{UPSERT_NODE} RETURNING round, (SELECT missing FROM counted)
"""  # noqa: S608 - likewise
RECORD = f"""
WITH counted AS (
    UPDATE jobs_rendezvousround
    SET number = %(round)s, "left" = %(left)s, joined = %(joined)s, enough_at = %(enough_at)s,
        first_node = %(first_node)s, grows_from = %(grows_from)s
    WHERE attempt_id = %(attempt)s
    RETURNING number
)
{UPSERT_NODE}
"""  # noqa: S608 - likewise
ASSIGN = """
UPDATE jobs_attemptnode AS node SET node_rank = placed.rank - 1, resume_id = %s
FROM unnest(%s::integer[]) WITH ORDINALITY AS placed (node_index, rank)
WHERE node.attempt_id = %s AND node.node_index = placed.node_index
"""


@dataclass(frozen=True)
class WaitingNode:
    """A node whose agent waits: the round that it has joined, and whether it waits as a spare node."""

    node_index: int
    round: int
    is_spare: bool


def join(attempt: Attempt, asked: JoinRequest) -> JoinReply:
    """Register a node in the newest round and return the reply to its agent.

    Raises Invalid for a node that the job did not ask for.
    """
    if asked.leaves:
        return _leave(attempt, asked)
    values: dict[str, Any] = {
        "attempt": attempt.pk, "asked": asked.round, "node_index": asked.node_index, "name": asked.name,
        "address": asked.address, "store_port": asked.store_port,
        "topology": json.dumps(asked.topology or _known_topology(attempt, asked.name)),
    }  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute(JOIN, values)
        joined = cursor.fetchone()
    if joined is not None:
        return JoinReply(state="gathering", round=joined[0], missing=joined[1])
    with transaction.atomic():
        round_ = next(iter(_rounds(LOCKED, [attempt.pk])), None) or _first_round(attempt)
        if asked.node_index >= round_.total:
            problem = FieldProblem(
                "/node_index", "too_many_nodes", f"{asked.node_index} of a run of {round_.total} nodes"
            )
            raise Invalid(
                "invalid_message", problem.detail, remedy="the backend started too many agents", problems=(problem,)
            )
        if round_.is_over:
            return JoinReply(state="over", round=asked.round)
        _record(attempt, round_, asked, values)
        missing = _place_if_complete(attempt, round_)
    if missing:
        return JoinReply(state="gathering", round=round_.number, missing=missing)
    return _reply_to_one(round_, asked)


def _leave(attempt: Attempt, asked: JoinRequest) -> JoinReply:
    """Begin a round without this node, if the others are enough. Idempotent: it asks again to learn of the end."""
    with transaction.atomic():
        round_ = next(iter(_rounds(LOCKED, [attempt.pk])), None)
        node = AttemptNode.objects.filter(attempt=attempt, node_index=asked.node_index).first()
        if round_ is None or node is None or round_.is_over:
            return JoinReply(state="over", round=asked.round)
        if not node.has_left:
            if round_.total - round_.left <= (round_.min_nodes or round_.needed):
                return JoinReply(state="over", round=asked.round)
            node.has_left, node.node_rank = True, None
            node.save(update_fields=["has_left", "node_rank"])
            round_.left += 1
            if asked.round > round_.number:
                _begin(round_, asked.round)
            round_.save()
    return JoinReply(state="spare", round=round_.number)


def newest_round(attempt: Attempt) -> tuple[int, bool]:
    """Return (the number of the newest rendezvous round of an attempt, 0 before the first; whether it was begun to
    continue on more nodes)."""
    facts = RendezvousRound.objects.filter(pk=attempt.pk).values_list("number", "grows_from").first()
    return (0, False) if facts is None else (facts[0], facts[1] > 0)


def grow_from_checkpoint(attempt: Attempt, step: int) -> None:
    """Begin the next round, if the run could be on more nodes than it is, and has not ended with this step.

    Call it when the checkpoint of a step is registered, from which the ranks then continue.
    """
    spec = spec_of(attempt.job)
    if spec.resources.min_nodes is None or spec.training is None or step >= spec.training.steps:
        return
    with transaction.atomic():
        round_ = next(iter(_rounds(LOCKED, [attempt.pk])), None)
        if round_ is not None and not round_.is_over and _can_grow(attempt, round_):
            _begin(round_, round_.number + 1, grows_from=round_.num_nodes)
            round_.save()


def replies_to(waiting: Mapping[str, Collection[WaitingNode]]) -> dict[str, dict[int, JoinReply]]:
    """Return the reply that each waiting node would get now, by attempt and node index.

    A node that is still to wait gets the state that it has: `gathering` in its round, or `spare`. In a round that has
    enough nodes and has waited for its spare ones, ranks are assigned first. A round that ends meanwhile gets no
    replies.
    """
    replies = {}
    for round_ in _rounds(ROUNDS, waiting):
        nodes = waiting[round_.pk]
        if round_.first_node is None and not _missing(round_) and not round_.is_over:
            with transaction.atomic():
                attempt = Attempt.objects.select_related("job").get(pk=round_.pk)
                round_ = _rounds(LOCKED, [round_.pk])[0]
                _place_if_complete(attempt, round_)
        replies[round_.pk] = _replies_in(round_, nodes)
    return replies


def mark_seen(waiting: Mapping[str, Iterable[WaitingNode]]) -> None:
    """Record that the agents of these nodes, by attempt, still wait."""
    for attempt_id, nodes in waiting.items():
        indexes = [node.node_index for node in nodes]
        with transaction.atomic():
            _rounds(LOCKED, [attempt_id])  # as everything that changes many nodes, in any order
            AttemptNode.objects.filter(attempt=attempt_id, node_index__in=indexes).update(seen_at=Now())


def _rounds(statement: str, attempt_ids: Collection[str]) -> list[RendezvousRound]:
    """Return rounds with two more attributes: `is_over`, whether the attempt is; `now`, the database's time."""
    return rows.select(RendezvousRound, statement, [list(attempt_ids)], "is_over", "now")


def _first_round(attempt: Attempt) -> RendezvousRound:
    asked = spec_of(attempt.job).resources
    total = asked.nodes + asked.spare_nodes
    facts = {"number": 1, "needed": asked.nodes, "total": total, "min_nodes": asked.min_nodes}
    RendezvousRound.objects.bulk_create([RendezvousRound(attempt_id=attempt.pk, **facts)], ignore_conflicts=True)
    return _rounds(LOCKED, [attempt.pk])[0]


def _begin(round_: RendezvousRound, number: int, grows_from: int = 0) -> None:
    """Begin a round, in which no node is yet. `grows_from`: see RendezvousRound."""
    round_.number, round_.joined, round_.enough_at, round_.first_node = number, 0, None, None
    round_.grows_from = grows_from


def _can_grow(attempt: Attempt, round_: RendezvousRound, joining: int = 0) -> bool:
    """Return whether the ranks of the round are on fewer nodes than they could be, with those that wait as spare ones
    and `joining` more."""
    if round_.first_node is None or round_.num_nodes == round_.needed:
        return False
    spec = spec_of(attempt.job)
    if spec.training is None or Heartbeat.objects.filter(attempt=attempt, step__gte=spec.training.steps).exists():
        return False  # the model is being exported
    waiting = AttemptNode.objects.filter(
        attempt=attempt, round=round_.number, node_rank=None, has_left=False, seen_at__gt=round_.now - SEEN_WITHIN
    )
    num_nodes = round_.num_nodes + waiting.count() + joining
    return choose_num_nodes(num_nodes, round_.needed, round_.num_nodes, partial(_fits, spec)) > round_.num_nodes


def _has_copies(attempt: Attempt) -> bool:
    """Return whether ranks that restart continue from copies in memory."""
    is_wanted = spec_of(attempt.job).checkpoint.shadow_every_steps != "none"
    return is_wanted and not attempt.job.events.filter(type="shadow.unused", actor=attempt.id).exists()


def _record(attempt: Attempt, round_: RendezvousRound, asked: JoinRequest, values: dict[str, Any]) -> None:
    """Register the node in the newest requested round, and count it."""
    now = round_.now
    mine = next(iter(rows.select(AttemptNode, NODE, [round_.pk, asked.node_index])), None)
    is_in_round = mine is not None and mine.round == round_.number
    is_another = mine is not None and any(
        getattr(mine, name) != getattr(asked, name) for name in ("name", "address", "store_port")
    )
    newest = max(round_.number, asked.round)
    if mine is not None and is_in_round and mine.node_rank is not None and is_another:
        newest = max(newest, round_.number + 1)
    grows_from = 0
    if not is_in_round and newest == round_.number and _can_grow(attempt, round_, joining=1) and _has_copies(attempt):
        newest, grows_from = round_.number + 1, round_.num_nodes
    if mine is not None and is_in_round and newest == round_.number and not is_another:
        AttemptNode.objects.filter(pk=mine.pk).update(seen_at=now)
        return
    if newest > round_.number:
        _begin(round_, newest, grows_from)
        is_in_round = False
    if mine is not None and mine.has_left:  # another process in its place, which has no rank yet
        round_.left -= 1
    if not is_in_round:
        round_.joined += 1
        is_first = round_.number == 1 and round_.joined > round_.fewest
        if is_first or round_.joined in (round_.fewest, round_.needed):
            round_.enough_at = now
    facts = {name: getattr(round_, name) for name in ("left", "joined", "enough_at", "first_node", "grows_from")}
    with connection.cursor() as cursor:
        cursor.execute(RECORD, {**values, **facts, "round": round_.number})


def _known_topology(attempt: Attempt, name: str) -> list[str]:
    """Return the node's topology in the cluster's inventory, for nodes that do not report it."""
    known = Node.objects.filter(cluster__pools=attempt.job.pool_id, name=name).values_list("topology", flat=True)
    return known.first() or []


def _missing(round_: RendezvousRound) -> int:
    """Return the number of nodes to wait for."""
    waited = None if round_.enough_at is None else round_.now - round_.enough_at
    expected = round_.total - round_.left
    has_enough = round_.joined > round_.grows_from if round_.grows_from else round_.joined >= round_.needed
    if round_.number > 1 and has_enough and round_.joined < expected:
        expected = round_.joined + _count_late(round_)
    return count_missing(round_.number, round_.joined, expected, round_.needed, round_.fewest, waited)


def _count_late(round_: RendezvousRound) -> int:
    """Return the number of nodes that are not in the round, or have not left, although their agents run."""
    joined = AttemptNode.objects.filter(Q(round=round_.number) | Q(has_left=True), attempt=round_.pk)
    running = Heartbeat.objects.filter(attempt=round_.pk, received_at__gt=round_.now - BEAT_WITHIN)
    return running.exclude(node_rank__in=joined.values("node_index")).count()


def _place_if_complete(attempt: Attempt, round_: RendezvousRound) -> int:
    """Assign the ranks if the round is complete. Return the number of nodes to wait for. The round must be locked.

    Nodes that have not been seen lately are removed from the round first.
    """
    while round_.first_node is None:
        missing = _missing(round_)
        if missing:
            return missing
        nodes = list(AttemptNode.objects.filter(attempt=attempt, round=round_.number))
        silent = [node.pk for node in nodes if round_.now - node.seen_at >= SEEN_WITHIN]
        if silent or len(nodes) < round_.joined:  # a node that joined twice at the same moment was counted twice
            AttemptNode.objects.filter(pk__in=silent).update(round=0)
            round_.joined = len(nodes) - len(silent)
            round_.enough_at = round_.enough_at if round_.joined >= round_.fewest else None
        else:
            spec = spec_of(attempt.job)
            round_.placed = choose_num_nodes(len(nodes), round_.needed, round_.fewest, partial(_fits, spec))
            round_.first_node = _assign_ranks(attempt, spec, nodes, round_.placed)
        round_.save(update_fields=["joined", "enough_at", "first_node", "placed"])
    return 0


def _assign_ranks(attempt: Attempt, spec: JobSpec, nodes: Iterable[AttemptNode], num_nodes: int) -> int:
    """Assign the ranks to so many nodes, and return the index of the node with rank 0."""
    placed = arrange([_join_of(node) for node in nodes], num_nodes, _stages(spec, num_nodes))
    newest = artifacts.newest_checkpoint_row(attempt.job)
    with connection.cursor() as cursor:
        cursor.execute(ASSIGN, [newest.id if newest else "", [each.node_index for each in placed], attempt.pk])
    return placed[0].node_index


def _mesh(spec: JobSpec, num_nodes: int) -> MeshSizes | None:
    """Return the mesh of a job on so many nodes; None if it does not train, or does not fit them."""
    if spec.training is None:
        return None
    world = num_nodes * spec.resources.processes_per_node
    mesh = plan_mesh(spec.training, spec.training.tokenizer.vocab_size, world)
    return mesh if isinstance(mesh, MeshSizes) else None


def _fits(spec: JobSpec, num_nodes: int) -> bool:
    return _mesh(spec, num_nodes) is not None


def _stages(spec: JobSpec, num_nodes: int) -> int:
    mesh = _mesh(spec, num_nodes)
    return 1 if mesh is None else stages_of_nodes(mesh, spec.resources.processes_per_node)


def _replies_in(round_: RendezvousRound, waiting: Collection[WaitingNode]) -> dict[int, JoinReply]:
    if round_.is_over:
        return {node.node_index: JoinReply(state="over", round=node.round) for node in waiting}
    if round_.first_node is None:
        reply = JoinReply(state="gathering", round=round_.number, missing=_missing(round_))
        return {node.node_index: reply for node in waiting}
    replies = {node.node_index: JoinReply(state="spare", round=round_.number) for node in waiting}
    if any(not node.is_spare or node.round < round_.number for node in waiting):
        nodes = list(_placed(round_))
        if len(nodes) < round_.num_nodes:
            return {}  # since the round was read, one has left it: the nodes learn of the next round
        resume_from = artifacts.checkpoint_id(nodes[0].resume_id)
        for node in nodes:
            if node.node_index in replies:
                replies[node.node_index] = _reply(round_, node, nodes, resume_from)
    return replies


def _reply_to_one(round_: RendezvousRound, asked: JoinRequest) -> JoinReply:
    """Return the reply to a node of a complete round."""
    nodes = AttemptNode.objects.filter(attempt=round_.pk)
    mine = nodes.get(node_index=asked.node_index)
    if mine.node_rank is None:
        return JoinReply(state="spare", round=round_.number)
    if not asked.wait_seconds:
        everyone = list(_placed(round_))
        resume = artifacts.checkpoint_manifest(mine.resume_id) if mine.resume_id else None
        update = {"nodes": [_join_of(node) for node in everyone], "resume": resume}
        return _reply(round_, mine, everyone, None).model_copy(update=update)
    assert round_.first_node is not None
    few = _placed(round_) if mine.node_rank == 0 else nodes.filter(node_index=round_.first_node)
    return _reply(round_, mine, list(few), artifacts.checkpoint_id(mine.resume_id))


def _placed(round_: RendezvousRound) -> QuerySet[AttemptNode]:
    placed = AttemptNode.objects.filter(attempt=round_.pk, round=round_.number, node_rank__isnull=False)
    return placed.order_by("node_rank")


def _reply(
    round_: RendezvousRound, mine: AttemptNode, nodes: Sequence[AttemptNode], resume_from: CheckpointId | None
) -> JoinReply:
    """Return the reply to a node with a rank. `nodes` by rank: the first for all, and the others for that one."""
    assert mine.node_rank is not None
    return JoinReply(
        state="placed",
        round=mine.round,
        node_rank=mine.node_rank,
        store_host=nodes[0].address,
        store_port=nodes[0].store_port,
        nodes=[_join_of(node) for node in nodes] if mine.node_rank == 0 else [],
        resume_from=resume_from,
        spares=max(0, round_.joined - round_.num_nodes),
        num_nodes=round_.num_nodes,
        grows_from=round_.grows_from,
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
