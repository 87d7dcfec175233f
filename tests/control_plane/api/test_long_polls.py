"""Agents that wait for their ranks, on a real server: one request each, and no thread is held meanwhile."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import httpx
import pytest
from django.db.models import F
from django.db.models.functions import Now

from athanor.api.agent import long_polls
from athanor.clusters.models import Pool
from athanor.dispatch import rendezvous_rounds, tokens
from athanor.jobs.models import Attempt, AttemptNode, Job
from deploy.local.handle import wait_until
from tests.control_plane import drive
from tests.control_plane.api.live import PATIENCE_SECONDS, LiveServer
from trainer.client.http import PlatformClient
from trainer.contract import node_rendezvous
from trainer.contract.node_rendezvous import JoinReply, JoinRequest
from trainer.contract.run import EndClass, Heartbeat

pytestmark = pytest.mark.django_db(transaction=True)
NODES = 8  # more than there are threads for agents


@pytest.fixture
def live(db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveServer]:
    monkeypatch.setattr(long_polls, "TICK_SECONDS", 0.02)
    monkeypatch.setattr(long_polls, "SPACE_SECONDS", 0.05)
    running = LiveServer()
    yield running
    running.close()


class Agents:
    """The agents of an attempt: real clients, each in a thread."""

    def __init__(self, live: LiveServer, attempt: Attempt) -> None:
        self.live, self.attempt = live, attempt
        self.requests = 0
        self.is_ended = False
        self.client = PlatformClient(f"{live.origin}/api/agent/v1", tokens.issue(attempt.id), retry_seconds=5.0)
        self.client._http.event_hooks["request"] = [self._count]
        self._threads = ThreadPoolExecutor(NODES)

    def _count(self, _: httpx.Request) -> None:
        self.requests += 1

    def join(self, index: int, **changes: Any) -> Future[JoinReply | None]:
        facts = {"node_index": index, "name": f"n{index}", "address": f"10.0.0.{index}", "store_port": 1000 + index}
        asked = JoinRequest(**{"wait_seconds": 60, **facts, **changes})
        return self._threads.submit(self.client.rendezvous, asked, lambda: self.is_ended)

    def wait_for(self, count: int) -> None:
        """Wait until the server holds the responses to so many nodes."""
        wait_until(lambda: len(self.live.polls._waiting) == count, f"{count} nodes wait", PATIENCE_SECONDS)


@pytest.fixture
def start(live: LiveServer, submit: Callable[..., Job], pool: Pool) -> Iterator[Callable[..., Agents]]:
    pool.nodes = NODES + 1
    pool.slots_per_node = NODES
    pool.save()
    made = []

    def make(nodes: int = NODES, spare_nodes: int = 0) -> Agents:
        asked = {"nodes": nodes, "spare_nodes": spare_nodes, "processes_per_node": 1, "cluster": "fake"}
        made.append(Agents(live, drive.start(submit(resources=asked))))
        return made[-1]

    yield make
    for agents in made:
        agents.is_ended = True
        agents._threads.shutdown()


def result(future: Future[JoinReply | None]) -> JoinReply:
    reply = future.result(PATIENCE_SECONDS)
    assert reply is not None
    return reply


def test_all_nodes_wait_in_one_request_and_hold_no_thread(start: Callable[..., Agents]) -> None:
    agents = start()
    waiting = [agents.join(index) for index in range(NODES - 1)]
    agents.wait_for(NODES - 1)
    assert agents.client.run().attempt_id == agents.attempt.id
    last = agents.join(NODES - 1)
    replies = [result(future) for future in [*waiting, last]]
    assert sorted(reply.node_rank for reply in replies) == list(range(NODES))
    assert {reply.store_host for reply in replies} == {"10.0.0.0"}
    assert [len(reply.nodes) for reply in replies] == [NODES] + [0] * (NODES - 1)
    assert agents.requests == NODES + 1  # and the one for the run


def test_a_round_completes_without_a_request_when_the_spare_node_does_not_join(
    start: Callable[..., Agents], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_rendezvous, "SPARE_JOIN_TIMEOUT", timedelta(seconds=1))
    agents = start(nodes=2, spare_nodes=1)
    replies = [agents.join(0), agents.join(1)]
    assert [result(reply).node_rank for reply in replies] == [0, 1]
    assert agents.requests == 2


def test_a_spare_node_waits_until_a_new_round_begins(
    start: Callable[..., Agents], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_rendezvous, "SPARE_JOIN_TIMEOUT", timedelta(hours=1))
    monkeypatch.setattr(rendezvous_rounds, "BEAT_WITHIN", timedelta(hours=1))
    agents = start(nodes=2, spare_nodes=1)
    agents.client.heartbeat(Heartbeat(node_rank=1, generation=0, phase="training"))
    first = [agents.join(0), agents.join(2)]
    agents.wait_for(2)
    assert [result(reply).state for reply in [*first, agents.join(1)]] == ["placed", "spare", "placed"]
    agents.wait_for(0)
    waiting = agents.join(2)
    agents.wait_for(1)
    leaver = agents.join(0, round=2)
    assert (result(waiting).state, result(waiting).round) == ("gathering", 2)
    agents.wait_for(1)
    replacement = agents.join(2)
    agents.wait_for(2)
    late = agents.join(1, round=2)
    assert sorted(result(reply).node_rank for reply in (leaver, replacement, late)) == [-1, 0, 1]


def test_nodes_that_wait_are_answered_when_the_attempt_is_over(start: Callable[..., Agents]) -> None:
    agents = start()
    waiting = agents.join(0)
    agents.wait_for(1)
    drive.report(agents.attempt, EndClass.COMPLETED)
    assert result(waiting).state == "over"


def test_an_agent_that_is_to_stop_leaves_its_long_poll(start: Callable[..., Agents]) -> None:
    agents = start()
    waiting = agents.join(0)
    agents.wait_for(1)
    agents.is_ended = True
    assert waiting.result(PATIENCE_SECONDS) is None
    agents.wait_for(0)


def test_a_node_whose_response_is_held_stays_in_the_round(
    start: Callable[..., Agents], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_polls, "SEEN_SECONDS", 0.0)
    agents = start(nodes=2)
    waiting = agents.join(0)
    agents.wait_for(1)
    AttemptNode.objects.update(seen_at=F("seen_at") - timedelta(minutes=2))
    recent = AttemptNode.objects.filter(seen_at__gt=Now() - rendezvous_rounds.SEEN_WITHIN)
    wait_until(recent.exists, "the node is seen", PATIENCE_SECONDS)
    assert result(agents.join(1)).node_rank == 1
    assert result(waiting).node_rank == 0


def test_a_node_that_has_gone_is_not_counted_after_a_while(start: Callable[..., Agents]) -> None:
    agents = start(nodes=2)
    gone = agents.join(0)
    agents.wait_for(1)
    agents.is_ended = True
    assert gone.result(PATIENCE_SECONDS) is None
    agents.wait_for(0)
    agents.is_ended = False
    AttemptNode.objects.update(seen_at=F("seen_at") - rendezvous_rounds.SEEN_WITHIN)
    waiting = agents.join(1)
    agents.wait_for(1)
    assert rendezvous_rounds.RendezvousRound.objects.get(pk=agents.attempt.pk).joined == 1
    returned = agents.join(0)
    assert (result(returned).node_rank, result(waiting).node_rank) == (0, 1)


def test_a_wait_ends_in_time_and_when_the_server_stops(start: Callable[..., Agents]) -> None:
    agents = start()
    assert result(agents.join(0, wait_seconds=1)) == JoinReply(state="gathering", round=1, missing=NODES - 1)
    agents.wait_for(0)
    waiting = agents.join(1)
    agents.wait_for(1)
    agents.live.polls.close()
    assert result(waiting).missing == NODES - 2


def test_an_agent_of_an_earlier_version_is_answered_immediately(start: Callable[..., Agents]) -> None:
    agents = start(nodes=2)
    body = {"node_index": 0, "name": "n0", "address": "10.0.0.0", "store_port": 1}
    url, token = f"{agents.live.origin}/api/agent/v1/rendezvous", tokens.issue(agents.attempt.id)

    def poll(**changes: Any) -> dict[str, Any]:
        answer = httpx.post(url, json={**body, **changes}, headers={"Authorization": f"Bearer {token}"})
        return dict(answer.raise_for_status().json())

    assert poll()["state"] == "gathering"
    assert [node["name"] for node in poll(node_index=1, name="n1")["nodes"]] == ["n0", "n1"]
    assert poll()["node_rank"] == 0
