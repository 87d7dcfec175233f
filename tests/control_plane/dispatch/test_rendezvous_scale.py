"""A round of many nodes completes, and what a join costs does not grow with their number."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from athanor.clusters.models import Pool
from athanor.dispatch import rendezvous_rounds
from athanor.dispatch.rendezvous_rounds import WaitingNode
from athanor.jobs.models import Attempt, AttemptNode, Job
from tests.control_plane import drive
from tests.control_plane.conftest import SPEC
from trainer.contract.node_rendezvous import JoinReply, JoinRequest

pytestmark = pytest.mark.django_db
NODES = 1250
ROWS_READ = """
SELECT coalesce(sum(seq_tup_read + idx_tup_fetch), 0) FROM pg_stat_xact_user_tables
WHERE relname IN ('jobs_attemptnode', 'jobs_rendezvousround')
"""


@pytest.fixture
def attempt(submit: Callable[..., Job], pool: Pool) -> Attempt:
    pool.nodes = pool.slots_per_node = NODES
    pool.save()
    training = {**SPEC["training"], "tokens_per_step": 64 * NODES}
    resources = {"nodes": NODES, "processes_per_node": 1, "cluster": "fake"}
    return drive.start(submit(resources=resources, training=training))


def join(attempt: Attempt, index: int, wait_seconds: int = 120) -> JoinReply:
    facts = {"node_index": index, "name": f"n{index:04}", "address": f"10.0.{index // 256}.{index % 256}"}
    asked = JoinRequest(**facts, store_port=1000, topology=[f"s{index % 7}"], wait_seconds=wait_seconds)
    return rendezvous_rounds.join(attempt, asked)


def cost_of(action: Callable[[], Any]) -> tuple[int, int]:
    """Return how many queries an action makes, and how many rows of the rendezvous they read."""
    before = _rows_read()
    with CaptureQueriesContext(connection) as queries:
        action()
    return len(queries), _rows_read() - before


def _rows_read() -> int:
    with connection.cursor() as cursor:
        cursor.execute(ROWS_READ)
        return int(cursor.fetchone()[0])


def test_the_cost_of_a_join_does_not_grow_with_the_nodes(attempt: Attempt) -> None:
    join(attempt, 0)
    early = cost_of(lambda: join(attempt, 1))
    for index in range(2, NODES - 2):
        join(attempt, index)
    late = cost_of(lambda: join(attempt, NODES - 2))
    again = cost_of(lambda: join(attempt, 0))
    last = cost_of(lambda: join(attempt, NODES - 1))
    placed = cost_of(lambda: join(attempt, NODES // 2))
    assert late == early
    assert max(early[1], again[1], placed[1]) <= 8
    assert last[1] >= NODES  # it assigns all ranks
    assert max(each[0] for each in (early, again, placed, last)) <= 15


def test_all_nodes_that_wait_longer_than_a_poll_get_one_small_reply(attempt: Attempt) -> None:
    for index in range(NODES - 1):
        assert join(attempt, index).missing == NODES - 1 - index
    waiting = {attempt.id: [WaitingNode(index, 1, is_spare=False) for index in range(NODES - 1)]}
    AttemptNode.objects.update(seen_at=F("seen_at") - timedelta(minutes=2))
    rendezvous_rounds.mark_seen(waiting)
    assert {reply.state for reply in rendezvous_rounds.replies_to(waiting)[attempt.id].values()} == {"gathering"}
    last = join(attempt, NODES - 1)
    queries = CaptureQueriesContext(connection)
    with queries:
        replies = {**rendezvous_rounds.replies_to(waiting)[attempt.id], NODES - 1: last}
    assert len(queries) <= 3
    assert {reply.state for reply in replies.values()} == {"placed"}
    assert sorted(reply.node_rank for reply in replies.values()) == list(range(NODES))
    assert len({(reply.store_host, reply.store_port) for reply in replies.values()}) == 1
    first = next(reply for reply in replies.values() if reply.node_rank == 0)
    assert [node.node_index for node in first.nodes] == sorted(replies, key=lambda index: replies[index].node_rank)
    assert max(len(reply.model_dump_json()) for reply in replies.values() if reply.node_rank > 0) < 400


def test_polls_of_an_earlier_version_complete_a_round_and_get_all_nodes(attempt: Attempt) -> None:
    for index in range(NODES):
        join(attempt, index, wait_seconds=0)
    reply = join(attempt, 0, wait_seconds=0)
    assert (reply.state, len(reply.nodes)) == ("placed", NODES)
