"""Nodes that a cluster has removed from a run are requested again: up to three times each, and one at a time."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db.models import F

from athanor.backends.fake.backend import FakeClusterBackend, World
from athanor.clusters.models import Cluster, Pool
from athanor.core import leases
from athanor.dispatch import finalise, observe, rendezvous_rounds, replace_nodes
from athanor.jobs.models import Attempt, AttemptNode, Job, RendezvousRound
from athanor.telemetry.models import Heartbeat
from tests.control_plane import drive
from tests.control_plane.dispatch.test_rendezvous_rounds import join

Submit = Callable[..., Job]
pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("bucket")]
SHRINKING = {"nodes": 2, "min_nodes": 1, "processes_per_node": 1, "cluster": "fake"}


@pytest.fixture
def attempt(submit: Submit, pool: Pool, world: World) -> Attempt:
    """Return a running attempt of two nodes that may lose one, on a cluster that replaces nodes."""
    return started(submit, pool, world, "fake_cluster", SHRINKING)


def started(submit: Submit, pool: Pool, world: World, kind: str, resources: dict[str, object]) -> Attempt:
    Cluster.objects.filter(pk=pool.cluster_id).update(kind=kind)
    pool.nodes = 4
    pool.save()
    attempt = drive.run(submit(resources=resources))
    place(world, attempt, "n0", "n1")
    for index in range(2):
        join(attempt, index)
    assert attempt.status == "running"
    return attempt


@pytest.fixture
def waiting(submit: Submit, pool: Pool, world: World) -> Attempt:
    """Return a running attempt of four nodes, of which two have joined and begun without the others."""
    Cluster.objects.filter(pk=pool.cluster_id).update(kind="fake_cluster")
    pool.nodes = 4
    pool.save()
    attempt = drive.run(submit(resources={**SHRINKING, "nodes": 4, "min_nodes": 2}))
    place(world, attempt, "n0", "n1", "n2", "n3")
    for index in (0, 2):
        join(attempt, index)
    RendezvousRound.objects.update(enough_at=F("enough_at") - timedelta(minutes=3))
    assert {join(attempt, index).num_nodes for index in (0, 2)} == {2}
    return attempt


def test_a_node_that_is_lost_before_its_agent_joins_is_requested_too(waiting: Attempt, world: World) -> None:
    place(world, waiting, "n0", "n1", "n2")
    replace_nodes.replace_due()
    assert requested(world) == [], "the agents of two have not joined: n3 is node 1 or 3"
    join(waiting, 1)
    replace_nodes.replace_due()
    replace_nodes.replace_due()
    assert requested(world) == [(3, 1)]
    assert [event["node"] for event in events(waiting, "attempt.node_requested")] == ["n3"]
    world.ended_replacements.add((waiting.backend_name, 3, 1))
    replace_nodes.replace_due()
    assert requested(world) == [(3, 1), (3, 2)], "as of a node that had joined"
    assert join(waiting, 3, name="n4").state == "gathering"
    assert rendezvous_rounds.newest_round(waiting)[1], "the run grows"


def test_all_that_are_lost_before_their_agents_join_are_requested(waiting: Attempt, world: World) -> None:
    place(world, waiting, "n0", "n2")
    replace_nodes.replace_due()
    assert requested(world) == [(1, 1), (3, 1)]


def place(world: World, attempt: Attempt, *nodes: str) -> None:
    """The cluster reports that the attempt runs on these nodes."""
    world.placed[attempt.backend_name] = nodes
    observe.observe_due()
    attempt.refresh_from_db()


def requested(world: World) -> list[tuple[int, int]]:
    """Node index and number of each request that the cluster has."""
    return [(index, number) for _, index, number in world.replacements]


def events(attempt: Attempt, type_: str) -> list[dict[str, object]]:
    return list(attempt.job.events.filter(type=type_).order_by("seq").values_list("data", flat=True))


def time_passes(seconds: float) -> None:
    """Move what has happened to the attempt's nodes back in time."""
    ago = timedelta(seconds=seconds)
    requested_at = F("replacement_requested_at") - ago
    AttemptNode.objects.update(joined_at=F("joined_at") - ago, replacement_requested_at=requested_at)


def test_a_node_that_the_cluster_has_removed_is_requested_once(attempt: Attempt, world: World) -> None:
    replace_nodes.replace_due()
    assert requested(world) == []
    place(world, attempt, "n0")
    assert (attempt.native_nodes, attempt.lost_nodes) == (["n0"], ["n1"])
    for _ in range(3):
        replace_nodes.replace_due()
        observe.observe_due()
    assert requested(world) == [(1, 1)]
    facts = {"attempt": attempt.id, "node_index": 1, "node": "n1", "number": 1}
    assert events(attempt, "attempt.node_requested") == [facts]
    (asked,) = world.replacements.values()
    assert asked.backend_name == attempt.backend_name
    assert isinstance(asked.payload, dict)
    assert asked.payload["avoid_nodes"] == ["n0"], "not beside another agent of the attempt"
    assert asked.secrets == world.running[attempt.backend_name].secrets


def test_a_replacement_that_is_lost_too_is_replaced_at_most_three_times(attempt: Attempt, world: World) -> None:
    for number in range(1, 6):
        place(world, attempt, "n0")
        replace_nodes.replace_due()
        time_passes(60)
        place(world, attempt, "n0", f"n{number}")
        join(attempt, 1, name=f"n{number}", address=f"10.0.1.{number}")
    assert requested(world) == [(1, 1), (1, 2), (1, 3)]
    assert [event["node"] for event in events(attempt, "attempt.node_requested")] == ["n1", "n1", "n2"]


def test_a_request_that_ends_before_its_agent_joins_is_followed_by_the_next(attempt: Attempt, world: World) -> None:
    place(world, attempt, "n0")
    replace_nodes.replace_due()
    replace_nodes.replace_due()
    assert requested(world) == [(1, 1)], "it waits or runs"
    for number in (1, 2, 3):
        world.ended_replacements.add((attempt.backend_name, 1, number))
        replace_nodes.replace_due()
    assert requested(world) == [(1, 1), (1, 2), (1, 3)]
    assert [event["number"] for event in events(attempt, "attempt.node_requested")] == [1, 2, 3]
    replace_nodes.replace_due()
    assert len(requested(world)) == 3


@pytest.mark.parametrize("fault", ["error", "stale_list", "empty_list"])
def test_a_request_is_not_over_because_its_cluster_does_not_know_the_attempt(
    attempt: Attempt, world: World, fault: str
) -> None:
    place(world, attempt, "n0")
    replace_nodes.replace_due()
    world.ended_replacements.add((attempt.backend_name, 1, 1))
    world.fault = fault
    replace_nodes.replace_due()
    world.fault = ""
    world.ended_replacements.clear()
    replace_nodes.replace_due()
    assert requested(world) == [(1, 1)]


def test_a_request_that_its_agent_has_answered_is_not_repeated(attempt: Attempt, world: World) -> None:
    place(world, attempt, "n0")
    replace_nodes.replace_due()
    time_passes(60)
    join(attempt, 1, name="n2", address="10.0.1.2")
    place(world, attempt, "n0", "n2")
    world.ended_replacements.add((attempt.backend_name, 1, 1))
    replace_nodes.replace_due()
    assert requested(world) == [(1, 1)]


def test_agents_that_name_the_lost_node_cause_no_more_requests(attempt: Attempt, world: World) -> None:
    """They are the team's programs, which may send any name."""
    place(world, attempt, "n0")
    Heartbeat.objects.all().delete()
    for number in range(1, 9):
        join(attempt, number % 2, name="n1", store_port=number)
        replace_nodes.replace_due()
        time_passes(60)
    assert len(events(attempt, "attempt.node_requested")) == 3, "as many as for one lost node"


def test_an_attempt_with_all_of_its_nodes_gets_no_other(attempt: Attempt, world: World) -> None:
    place(world, attempt, "n0")
    place(world, attempt, "n0", "n2")
    replace_nodes.replace_due()
    assert requested(world) == []


def test_the_agent_of_a_node_that_still_reports_is_not_replaced(attempt: Attempt, world: World) -> None:
    place(world, attempt, "n1")  # the node of the agent that has sent a heartbeat
    replace_nodes.replace_due()
    assert requested(world) == []
    Heartbeat.objects.update(received_at=F("received_at") - timedelta(seconds=60))
    replace_nodes.replace_due()
    assert requested(world) == [(0, 1)]


def test_a_worker_that_is_killed_between_record_and_submission_leaves_the_same_request(
    attempt: Attempt, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise SystemExit

    place(world, attempt, "n0")
    monkeypatch.setattr(FakeClusterBackend, "submit", killed)
    with pytest.raises(SystemExit):
        replace_nodes.replace_due()
    monkeypatch.undo()
    assert requested(world) == []
    replace_nodes.replace_due()
    assert requested(world) == [], "its lease has not expired"
    Attempt.objects.update(lease_until=F("lease_until") - timedelta(seconds=60))
    replace_nodes.replace_due()
    replace_nodes.replace_due()
    assert requested(world) == [(1, 1)]
    assert len(events(attempt, "attempt.node_requested")) == 1


def test_a_cluster_that_does_not_answer_is_asked_again_for_the_same(attempt: Attempt, world: World) -> None:
    place(world, attempt, "n0")
    world.away = 1
    replace_nodes.replace_due()
    assert requested(world) == []
    world.lose_answers = 1
    replace_nodes.replace_due()
    replace_nodes.replace_due()
    assert requested(world) == [(1, 1)]
    assert AttemptNode.objects.get(node_index=1).replacement_submitted_at is not None
    assert len(events(attempt, "attempt.node_requested")) == 1


def test_a_refusal_is_an_event_and_the_last_request(attempt: Attempt, world: World) -> None:
    place(world, attempt, "n0")
    world.refuse = "the account may not have more"
    replace_nodes.replace_due()
    world.refuse = ""
    replace_nodes.replace_due()
    assert requested(world) == []
    facts = {"attempt": attempt.id, "node_index": 1, "because": "the account may not have more"}
    assert events(attempt, "attempt.node_refused") == [facts]
    assert len(events(attempt, "attempt.node_requested")) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"desired": "stop"},
        {"desired": "pause"},
        {"status": "stopping"},
        {"status": "pausing"},
    ],
)
def test_a_run_that_is_to_end_gets_no_node(attempt: Attempt, world: World, change: dict[str, str]) -> None:
    place(world, attempt, "n0")
    Job.objects.update(**change)
    replace_nodes.replace_due()
    assert requested(world) == []


def test_a_run_that_has_ended_or_has_no_time_left_gets_no_node(attempt: Attempt, world: World) -> None:
    place(world, attempt, "n0")
    Attempt.objects.update(end_report={})
    replace_nodes.replace_due()
    limit = attempt.job.resolved_spec["time_limit_seconds"]
    Attempt.objects.update(end_report=None, launched_at=F("launched_at") - timedelta(seconds=limit - 30))
    replace_nodes.replace_due()
    assert requested(world) == []


@pytest.mark.parametrize(
    ("kind", "resources"),
    [("fake", SHRINKING), ("fake_cluster", {"nodes": 2, "processes_per_node": 1, "cluster": "fake"})],
    ids=["a cluster that cannot", "a run that ends without a node"],
)
def test_other_lost_nodes_are_not_requested(
    submit: Submit, pool: Pool, world: World, kind: str, resources: dict[str, object]
) -> None:
    attempt = started(submit, pool, world, kind, resources)
    place(world, attempt, "n0")
    replace_nodes.replace_due()
    assert requested(world) == []
    assert events(attempt, "attempt.node_requested") == []


def test_what_is_left_of_the_requests_of_an_ended_attempt_is_cancelled_once(attempt: Attempt, world: World) -> None:
    place(world, attempt, "n0")
    replace_nodes.replace_due()
    assert requested(world) == [(1, 1)]
    world.finish(attempt.backend_name, 1)
    observe.observe_due()
    world.away = 1
    replace_nodes.replace_due()
    assert world.cancelled == []
    replace_nodes.replace_due()
    replace_nodes.replace_due()
    assert world.cancelled == [attempt.backend_name]
    finalise.finalise_due()


def test_a_lost_node_remains_one_of_the_attempts_own_nodes(attempt: Attempt, world: World) -> None:
    """What its agent has reported late is not blamed on the node that is left."""
    place(world, attempt, "n0")
    assert [attempt.own_node(name) for name in ("n0", "n1", "other")] == ["n0", "n1", None]
    place(world, attempt, "n0", "n1")
    assert (attempt.native_nodes, attempt.lost_nodes) == (["n0", "n1"], [])
    place(world, attempt, "n0", "n2")
    assert (attempt.native_nodes, attempt.lost_nodes) == (["n0", "n2"], ["n1"])


def test_one_worker_at_a_time_requests_nodes(attempt: Attempt, world: World) -> None:
    place(world, attempt, "n0")
    (lease,) = leases.claim(Attempt.objects.all(), seconds=30, limit=1)
    replace_nodes.replace_due()
    assert events(attempt, "attempt.node_requested") == []
    leases.release(Attempt, lease)
    replace_nodes.replace_due()
    assert requested(world) == [(1, 1)]
