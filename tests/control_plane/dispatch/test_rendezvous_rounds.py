"""Ranks are assigned when all nodes have joined, in network order, and again after a node has left."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db.models import F
from django.utils import timezone

from athanor.clusters.models import Node, Pool
from athanor.core.errors import Invalid
from athanor.dispatch import rendezvous_rounds, tokens
from athanor.jobs.models import Attempt, AttemptNode, Job, RendezvousRound
from athanor.telemetry.models import Heartbeat
from tests.control_plane import drive
from tests.control_plane.api.test_agent import AgentClient, manifest_of, stored_part
from trainer.contract.node_rendezvous import JoinReply, JoinRequest
from trainer.contract.run import EndClass

pytestmark = pytest.mark.django_db


@pytest.fixture
def attempt(submit: Callable[..., Job], pool: Pool) -> Attempt:
    """Return an attempt of two nodes and a spare one."""
    pool.nodes = 4
    pool.save()
    return drive.start(submit(resources={"nodes": 2, "spare_nodes": 1, "processes_per_node": 1, "cluster": "fake"}))


def join(attempt: Attempt, index: int, **changes: Any) -> JoinReply:
    facts = {"node_index": index, "name": f"n{index}", "address": f"10.0.0.{index}", "store_port": 1000 + index}
    return rendezvous_rounds.join(attempt, JoinRequest(**{**facts, **changes}))


def time_passes(seconds: float) -> None:
    ago = timedelta(seconds=seconds)
    RendezvousRound.objects.update(enough_at=F("enough_at") - ago)


def silence(index: int, seconds: float) -> None:
    AttemptNode.objects.filter(node_index=index).update(seen_at=F("seen_at") - timedelta(seconds=seconds))


def beat(attempt: Attempt, index: int, **changes: Any) -> Any:
    facts = {"node_rank": index, "generation": 0, "phase": "training", **changes}
    answer = AgentClient(tokens.issue(attempt.id))("POST", "heartbeat", facts)
    assert answer.status_code == 200
    return answer.json()


def all_there(attempt: Attempt) -> dict[int, JoinReply]:
    for index in range(3):
        join(attempt, index)
    return {index: join(attempt, index) for index in range(3)}


def test_nobody_is_placed_before_all_are_there(attempt: Attempt) -> None:
    assert join(attempt, 0) == JoinReply(state="gathering", round=1, missing=1)
    assert join(attempt, 1).missing == 1  # the spare one, which may be late
    assert join(attempt, 2).state == "spare"
    first, second = join(attempt, 0), join(attempt, 1)
    assert (first.state, first.node_rank, first.store_host, first.store_port) == ("placed", 0, "10.0.0.0", 1000)
    assert (second.node_rank, second.store_host, second.store_port) == (1, "10.0.0.0", 1000)
    assert (first.spares, second.spares) == (1, 1)
    assert [each.name for each in first.nodes] == ["n0", "n1"]


def test_a_spare_node_that_does_not_come_is_waited_for_only_a_moment(attempt: Attempt) -> None:
    join(attempt, 0)
    assert join(attempt, 1).state == "gathering"
    time_passes(11)
    placed = join(attempt, 1)
    assert (placed.state, placed.spares) == ("placed", 0)
    assert join(attempt, 2).state == "spare"
    assert join(attempt, 0).spares == 1


def test_one_that_died_while_it_waited_is_not_counted(attempt: Attempt) -> None:
    join(attempt, 0)
    silence(0, 31)
    assert join(attempt, 1).missing == 1
    time_passes(11)
    assert join(attempt, 1).state == "gathering"
    assert join(attempt, 2).state == "gathering"
    time_passes(11)
    assert join(attempt, 2).node_rank == 1


def test_the_inventory_tells_the_switches_that_a_node_does_not_know(attempt: Attempt) -> None:
    cluster = attempt.job.pool.cluster
    Node.objects.create(cluster=cluster, name="n0", topology=["b"])
    Node.objects.create(cluster=cluster, name="n1", topology=["a"])
    places = all_there(attempt)
    assert (places[0].node_rank, places[1].node_rank) == (1, 0)
    assert places[0].nodes[0].topology == ["a"]


def test_who_leaves_a_round_ends_it_for_all_and_the_spare_node_is_taken(attempt: Attempt) -> None:
    all_there(attempt)
    assert join(attempt, 0, round=2, because="lost a peer").state == "gathering"
    assert rendezvous_rounds.newest_round(attempt) == (2, False)
    assert join(attempt, 2, round=1).round == 2
    time_passes(11)
    first, spare = join(attempt, 0, round=2), join(attempt, 2)
    assert [(place.state, place.node_rank) for place in (first, spare)] == [("placed", 0), ("placed", 1)]
    assert join(attempt, 1).state == "spare"  # it comes back when its place is taken


def test_a_later_round_waits_only_for_nodes_that_send_heartbeats(attempt: Attempt) -> None:
    all_there(attempt)
    join(attempt, 0, round=2, because="lost a peer")
    beat(attempt, 1)
    assert join(attempt, 2, round=2).missing == 1
    Heartbeat.objects.filter(node_rank=1).update(received_at=F("received_at") - timedelta(seconds=7))
    assert [join(attempt, index, round=2).node_rank for index in (0, 2)] == [0, 1]


def test_a_node_that_leaves_is_replaced_by_the_spare_one(attempt: Attempt) -> None:
    all_there(attempt)
    for _ in range(2):
        assert join(attempt, 1, round=2, leaves=True) == JoinReply(state="spare", round=2)
    assert join(attempt, 0, round=2).missing == 1
    assert join(attempt, 2, round=1).round == 2
    places = [join(attempt, index, round=2) for index in (0, 2)]
    assert [(place.state, place.node_rank) for place in places] == [("placed", 0), ("placed", 1)], "without a wait"
    assert {place.spares for place in places} == {0}
    assert join(attempt, 1, round=3, leaves=True) == JoinReply(state="spare", round=2)
    assert join(attempt, 0, round=3, leaves=True).state == "over", "no spare node is left"
    assert rendezvous_rounds.newest_round(attempt) == (2, False)
    assert join(attempt, 1, round=3, store_port=4321).state == "gathering", "its agent was started again"
    assert join(attempt, 0, round=3).node_rank == 0
    drive.report(attempt, EndClass.COMPLETED)
    assert join(attempt, 1, leaves=True).state == "over"


@pytest.fixture
def shrinkable(submit: Callable[..., Job], pool: Pool) -> Attempt:
    """Return an attempt of four nodes that may train on two, in round 1."""
    pool.nodes = 4
    pool.save()
    attempt = drive.start(submit(resources={"nodes": 4, "min_nodes": 2, "processes_per_node": 1, "cluster": "fake"}))
    for index in range(4):
        join(attempt, index)
    return attempt


def test_the_first_round_is_of_all_nodes_that_join_within_two_minutes_of_each_other(
    shrinkable: Attempt, submit: Callable[..., Job]
) -> None:
    assert {join(shrinkable, index).num_nodes for index in range(4)} == {4}
    job = submit(resources={"nodes": 4, "min_nodes": 2, "processes_per_node": 1, "cluster": "fake"})
    second = drive.start(job)
    join(second, 3)
    time_passes(3600)
    assert join(second, 3) == JoinReply(state="gathering", round=1, missing=3), "one is not enough"
    join(second, 1)
    time_passes(119)
    assert join(second, 1).missing == 2
    assert join(second, 0).missing == 1, "the time begins with each node that joins"
    time_passes(119)
    assert join(second, 1).missing == 1
    time_passes(2)
    places = [join(second, index) for index in (0, 1, 3)]
    assert [(place.state, place.num_nodes, place.node_rank) for place in places] == [("placed", 3, i) for i in range(3)]
    assert join(second, 2) == JoinReply(state="gathering", round=2, missing=3), "the late one makes the run grow"
    assert rendezvous_rounds.newest_round(second) == (2, True)


def test_without_a_smallest_number_the_first_round_waits_for_all(attempt: Attempt) -> None:
    join(attempt, 1)
    time_passes(3600)
    assert join(attempt, 1).missing == 1


@pytest.mark.parametrize("left", [(0, 1, 2), (2, 3)])
def test_without_a_spare_node_the_round_is_of_those_that_are_left(shrinkable: Attempt, left: tuple[int, ...]) -> None:
    for index in left:
        assert join(shrinkable, index, round=2, because="lost a peer").state == "gathering"
    time_passes(14)
    assert join(shrinkable, left[0], round=2).missing == 4 - len(left)
    time_passes(2)
    places = [join(shrinkable, index, round=2) for index in left]
    assert sorted(place.node_rank for place in places) == list(range(len(left)))
    assert {(place.state, place.num_nodes, place.spares) for place in places} == {("placed", len(left), 0)}


def test_fewer_than_the_smallest_number_wait(shrinkable: Attempt) -> None:
    join(shrinkable, 3, round=2)
    time_passes(3600)
    assert join(shrinkable, 3, round=2) == JoinReply(state="gathering", round=2, missing=3)


def test_nodes_leave_down_to_the_smallest_number_and_the_others_do_not_wait(shrinkable: Attempt) -> None:
    assert join(shrinkable, 1, round=2, leaves=True).state == "spare"
    for index in (0, 2, 3):
        join(shrinkable, index, round=2)
    assert join(shrinkable, 0, round=2).num_nodes == 3
    assert join(shrinkable, 0, round=3, leaves=True).state == "spare"
    for index in (2, 3):
        join(shrinkable, index, round=3)
    assert join(shrinkable, 2, round=3).num_nodes == 2
    assert join(shrinkable, 2, round=4, leaves=True).state == "over", "the other one is not enough"


@pytest.fixture
def shrunk(shrinkable: Attempt) -> Attempt:
    """Return the attempt after it has lost the last of its four nodes, in round 2."""
    for index in (0, 1, 2):
        join(shrinkable, index, round=2)
    time_passes(16)
    assert join(shrinkable, 0, round=2).num_nodes == 3
    return shrinkable


def test_a_run_grows_when_a_node_returns(shrunk: Attempt) -> None:
    assert join(shrunk, 3) == JoinReply(state="gathering", round=3, missing=3)
    assert rendezvous_rounds.newest_round(shrunk) == (3, True)
    for index in range(3):
        join(shrunk, index, round=3)
    assert {(join(shrunk, index).num_nodes, join(shrunk, index).grows_from) for index in range(4)} == {(4, 3)}
    join(shrunk, 0, round=4, because="lost a peer")
    assert rendezvous_rounds.newest_round(shrunk) == (4, False)
    for index in range(1, 4):
        join(shrunk, index, round=4)
    assert {join(shrunk, index).grows_from for index in range(4)} == {0}


def test_a_run_that_grows_does_not_wait_for_the_nodes_that_stay_lost(shrunk: Attempt) -> None:
    join(shrunk, 0, round=3, because="lost a peer")
    join(shrunk, 1, round=3)
    time_passes(16)
    assert join(shrunk, 0, round=3).num_nodes == 2
    assert join(shrunk, 2) == JoinReply(state="gathering", round=4, missing=3)
    beat(shrunk, 1)
    assert join(shrunk, 0, round=4).missing == 2, "it had ranks and will come"
    assert {join(shrunk, index, round=4).num_nodes for index in (1, 0, 2)} == {3}, "node 3 sends no heartbeats"


def test_it_grows_only_if_the_mesh_fits_more_nodes(shrinkable: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous_rounds, "_fits", lambda _, num_nodes: num_nodes in (2, 4))
    for index in (0, 1):
        join(shrinkable, index, round=2)
    time_passes(16)
    assert join(shrinkable, 0, round=2).num_nodes == 2
    assert join(shrinkable, 2, store_port=4321).state == "spare", "three are no more than two"
    silence(2, 31)
    assert join(shrinkable, 3, store_port=4321).state == "spare", "the other one has gone"
    assert join(shrinkable, 2, store_port=4321).state == "spare", "it asks again"
    rendezvous_rounds.mark_seen({shrinkable.pk: [rendezvous_rounds.WaitingNode(2, 2, is_spare=True)]})
    assert rendezvous_rounds.newest_round(shrinkable) == (2, False)
    rendezvous_rounds.grow_from_checkpoint(shrinkable, step=5)
    assert rendezvous_rounds.newest_round(shrinkable) == (3, True)


def register(agent: AgentClient, attempt: Attempt, step: int) -> None:
    manifest = manifest_of(attempt, step, [stored_part(attempt, f"checkpoints/{step}/rank0")])
    assert agent("POST", "checkpoints", manifest.model_dump(mode="json")).status_code == 201


def test_without_copies_in_memory_it_grows_when_a_checkpoint_is_stored(shrunk: Attempt, bucket: str) -> None:
    agent = AgentClient(tokens.issue(shrunk.id))
    event = {"time": timezone.now().isoformat(), "type": "shadow.unused", "data": {"rank": 0, "because": "no memory"}}
    batch = {"writer": "rank0-1", "sequence": 0, "events": [event]}
    assert agent("POST", "progress", batch).status_code == 200
    assert join(shrunk, 3, store_port=4321).state == "spare"
    assert shrunk.job.resolved_spec["training"]["steps"] > 5
    register(agent, shrunk, step=5)
    assert beat(shrunk, 0) == {"stop": None, "round": 3, "grows": True, "profile": None}


def test_a_run_that_exports_its_model_does_not_grow(shrunk: Attempt, bucket: str) -> None:
    steps = shrunk.job.resolved_spec["training"]["steps"]
    beat(shrunk, 0, phase="export", step=steps)
    assert join(shrunk, 3, store_port=4321).state == "spare"
    register(AgentClient(tokens.issue(shrunk.id)), shrunk, step=steps)
    assert rendezvous_rounds.newest_round(shrunk) == (2, False)


def test_another_process_in_a_nodes_place_begins_a_round(attempt: Attempt) -> None:
    all_there(attempt)
    assert join(attempt, 1, store_port=4321).round == 2


def test_asking_again_changes_nothing(attempt: Attempt) -> None:
    assert all_there(attempt) == {index: join(attempt, index) for index in range(3)}
    assert AttemptNode.objects.count() == 3


def test_when_the_attempt_has_ended_elsewhere_it_is_over(attempt: Attempt) -> None:
    all_there(attempt)
    drive.report(attempt, EndClass.COMPLETED)
    assert join(attempt, 2).state == "over"


def test_a_node_that_nobody_asked_for_is_refused(attempt: Attempt) -> None:
    with pytest.raises(Invalid, match="3 of a run of 3 nodes"):
        join(attempt, 3)


def test_the_heartbeats_of_many_nodes_tell_the_newest_round(attempt: Attempt) -> None:
    agent = AgentClient(tokens.issue(attempt.id))
    body = {"node_index": 0, "name": "n0", "address": "10.0.0.1", "store_port": 1}
    assert agent("POST", "rendezvous", body).json()["state"] == "gathering"
    beat = {"node_rank": 0, "generation": 0, "phase": "data"}
    assert agent("POST", "heartbeat", beat).json()["round"] == 1
    assert agent("POST", "rendezvous", {**body, "round": 7}).json()["round"] == 7
    assert agent("POST", "heartbeat", beat).json()["round"] == 7


def test_the_first_end_stands_unless_it_was_a_consequence(attempt: Attempt) -> None:
    agent = AgentClient(tokens.issue(attempt.id))

    def end(node: int, end_class: EndClass) -> str:
        now = "2026-01-01T00:00:00Z"
        agent("POST", "end", {"end_class": end_class.value, "last_step": 1, "node_rank": node, "at": now})
        attempt.refresh_from_db()
        assert attempt.end_report is not None
        return str(attempt.end_report["end_class"])

    assert end(0, EndClass.COLLECTIVE_TIMEOUT) == "collective_timeout"
    assert end(1, EndClass.DATA_ERROR) == "data_error"
    assert end(0, EndClass.COLLECTIVE_TIMEOUT) == "data_error"
    assert end(2, EndClass.USER_ERROR) == "data_error"
