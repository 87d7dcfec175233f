"""Copies on other nodes: where they are placed, which ones a resume uses, and how they are sent and fetched."""

import socket
import threading
from collections.abc import Iterator
from itertools import product

import pytest

from deploy.local.handle import wait_until
from tests.trainer.runs import platform_run, tiny_training
from trainer.agent import replica_server
from trainer.agent.copies import NodeCopies
from trainer.agent.rendezvous_client import NodeIdentity
from trainer.agent.replica_server import ReplicaServer
from trainer.checkpoint import replicator
from trainer.checkpoint.replicator import Replicator
from trainer.contract.node_rendezvous import JoinReply
from trainer.contract.run import ProcessLayout, RunConfig
from trainer.resilience import peer_link
from trainer.resilience.peer_link import PeerError, fetch, push, release, secret_of
from trainer.resilience.replicas import Choice, CopyId, RankCopies, choose_copy, place_replicas
from trainer.resilience.shadow_memory import PAGE, ShadowMemory, digest_of

SIZE = 3 * PAGE + 64
SECRET = secret_of("key", "att_1")


@pytest.mark.parametrize("nodes", [2, 3, 4, 5, 6])
def test_no_node_and_no_domain_has_a_copy_and_its_only_replica(nodes: int) -> None:
    """Over all ways to distribute nodes over up to three switches."""
    for names in product("abc", repeat=nodes):
        domains = [(name,) for name in names]
        peers = place_replicas(domains)
        assert sorted(peers) == list(range(nodes)), "each node gets the copies of one"
        assert all(peer != node for node, peer in enumerate(peers))
        largest = max(names.count(name) for name in names)
        inside = sum(domains[node] == domains[peer] for node, peer in enumerate(peers))
        assert inside == max(0, 2 * largest - nodes), (names, "as few as can be")


def copy(step: int, restart_count: int = 0) -> CopyId:
    return CopyId(step, restart_count, 2)


def rank(*steps: int, skipped: tuple[tuple[int, str], ...] = ()) -> RankCopies:
    return RankCopies({copy(step): float(step) for step in steps}, skipped)


def test_the_newest_step_of_which_every_rank_has_or_can_fetch_a_copy_is_chosen() -> None:
    lost = RankCopies({})
    held = [[(1, copy(8)), (1, copy(12))], []]
    choice = choose_copy([rank(8, 12, 14, 15), lost], held, 0, {}, {})
    assert (choice.copy, choice.sources, choice.next_loss) == (copy(12), {1: 0}, 12.0)
    assert choice.skipped == {14: (1, "this rank has no copy of it"), 15: (1, "this rank has no copy of it")}
    assert choose_copy([rank(8, 14, 15), lost], held, 0, {}, {}).copy == copy(8), (
        "one that is still on its way is not used"
    )
    assert choose_copy([rank(8, 12), lost], held, 13, {}, {}).copy is None, "the stored checkpoint is newer"
    assert choose_copy([rank(15), rank(15)], [[(0, copy(12)), (1, copy(12))], []], 0, {}, {}).sources == {}


def test_a_copy_that_turned_out_to_be_unusable_is_replaced_by_the_next() -> None:
    ranks, held = [rank(8, 12), RankCopies({})], [[(1, copy(8)), (1, copy(12))], [(1, copy(12))]]
    refused = {(1, copy(12)): {0: "its content does not have its digest"}}
    assert choose_copy(ranks, held, 0, refused, {}).sources == {1: 1}, "another node has one of the same step"
    refused[1, copy(12)][1] = "its node does not hold it any more"
    choice = choose_copy(ranks, held, 0, refused, {})
    assert (choice.copy, choice.sources) == (copy(8), {1: 0})
    assert choice.skipped == {12: (1, "its content does not have its digest")}
    refused[1, copy(8)] = {0: "torn"}
    assert choose_copy(ranks, held, 0, refused, {}) == Choice(
        None, {}, {8: (1, "torn"), 12: (1, "its content does not have its digest")}
    )


def test_copies_of_another_number_of_ranks_are_used_if_nothing_newer_is_complete() -> None:
    """What they lack is known once their descriptions are read; the first rank has metrics that no other one has."""
    held = [[(0, copy(8)), (2, CopyId(12, 1, 3)), (0, CopyId(12, 1, 3))], [(1, CopyId(12, 1, 3)), (1, copy(8))]]
    lost = [RankCopies({}), RankCopies({})]
    choice = choose_copy(lost, held, 0, {}, {})
    assert (choice.copy, choice.sources) == (CopyId(12, 1, 3), {0: 0, 1: 1, 2: 0})
    refused = {(2, CopyId(12, 1, 3)): {0: "torn"}}
    assert choose_copy(lost, held, 0, refused, {}).sources == {0: 0, 1: 1}, "the others may have all of it"
    choice = choose_copy(lost, held, 0, refused, {CopyId(12, 1, 3): (1, "no node holds a copy that has model/a")})
    assert (choice.copy, choice.sources, choice.skipped) == (copy(8), {0: 0, 1: 1}, {12: (2, "torn")})
    choice = choose_copy(lost, held, 0, {}, {CopyId(12, 1, 3): (1, "no node holds a copy that has model/a")})
    assert choice.skipped == {12: (1, "no node holds a copy that has model/a")}
    choice = choose_copy(lost, [held[0][1:2], []], 0, {}, {})
    assert (choice.copy, choice.skipped) == (None, {12: (0, "no node holds the copy of rank 0 of 3")})
    assert choose_copy([rank(13), rank(13)], held, 0, {}, {}).copy == copy(13)


def test_copies_of_different_worker_groups_are_not_one_state() -> None:
    """On GPUs, a step that is taken twice may differ in its last bits."""
    ranks = [RankCopies({copy(12, 1): None, copy(10, 0): None}), RankCopies({copy(12, 0): None, copy(10, 0): None})]
    choice = choose_copy(ranks, [[], []], 0, {}, {})
    assert choice.copy == copy(10, 0)


def test_a_reason_of_the_rank_itself_comes_first() -> None:
    ranks = [rank(12, skipped=((15, "it is incomplete"),)), rank(12, 15)]
    assert choose_copy(ranks, [], 0, {}, {}).skipped == {15: (0, "it is incomplete")}


def filled(step: int, slots: int = 2) -> tuple[ShadowMemory, dict]:
    """Memory with a copy of a step in its first slot, and the header to send it with."""
    memory = ShadowMemory.create("test", slots)
    assert memory is not None
    memory.open(SIZE)
    memory.begin(0, step)
    memory.data(0)[:SIZE] = bytes((step + place) % 251 for place in range(SIZE))
    text = f'{{"step": {step}}}'
    memory.finish(0, step, text.encode())
    header = {"rank": 3, "copy": [step, 0, 2], "round": 1, "text": text, "digest": digest_of(memory.data(0)[:SIZE])}
    return memory, header


@pytest.fixture
def server() -> Iterator[ReplicaServer]:
    server = ReplicaServer("127.0.0.1", SECRET, expected_ranks=1)
    server.begin_round(1)
    yield server
    server.close()


def send(server: ReplicaServer, step: int, **changes: object) -> None:
    memory, header = filled(step)
    push((server.host, server.port), SECRET, memory, 0, SIZE, header | changes)
    memory.close()


def fetched(server: ReplicaServer, step: int, rank: int = 3) -> bytes:
    data = bytearray(SIZE)
    fetch((server.host, server.port), SECRET, rank, copy(step), memoryview(data))
    return bytes(data)


def test_two_generations_of_a_copy_are_held_and_fetched_as_they_were(server: ReplicaServer) -> None:
    for step in (5, 7, 9):
        send(server, step)
    assert sorted(server.held()) == [(3, copy(7)), (3, copy(9))]
    memory, _ = filled(7)
    assert fetched(server, 7) == bytes(memory.data(0)[:SIZE])
    with pytest.raises(PeerError, match="does not hold it any more"):
        fetched(server, 5)
    assert server.held_bytes() >= 2 * SIZE
    server.drop()
    assert (server.held(), server.held_bytes()) == ([], 0)


def test_an_altered_copy_is_refused_on_arrival_and_the_one_before_it_stays(server: ReplicaServer) -> None:
    send(server, 5)
    send(server, 7)
    with pytest.raises(PeerError, match="its content does not have its digest"):
        send(server, 9, digest=0)
    assert server.held() == [(3, copy(7))]
    send(server, 9)
    assert sorted(server.held()) == [(3, copy(7)), (3, copy(9))]


def test_a_transfer_that_breaks_off_leaves_the_one_before_it(server: ReplicaServer) -> None:
    send(server, 5)
    memory, header = filled(7)
    large = 2**24  # the second slot ends before
    with pytest.raises(OSError, match="the memory of the copy ends after 16,384 of 16,777,216 bytes"):
        push((server.host, server.port), SECRET, memory, 1, large, header)
    assert server.held() == [(3, copy(5))]


def test_who_does_not_know_the_secret_gets_nothing(server: ReplicaServer) -> None:
    send(server, 5)
    other = secret_of("key", "att_2")
    with pytest.raises(ConnectionError, match="closed the connection"):
        fetch((server.host, server.port), other, 3, copy(5), memoryview(bytearray(SIZE)))
    memory, header = filled(7)
    with pytest.raises(ConnectionError, match="closed the connection"):
        push((server.host, server.port), other, memory, 0, SIZE, header)
    assert server.held() == [(3, copy(5))]
    assert secret_of("other key", "att_1") != SECRET


def test_a_server_without_the_secret_is_not_sent_anything() -> None:
    with ReplicaServerOf(secret_of("key", "att_2")) as server, pytest.raises((PeerError, ConnectionError)):
        send(server, 5)


class ReplicaServerOf(ReplicaServer):
    """A server that accepts every client."""

    def __init__(self, secret: bytes) -> None:
        super().__init__("127.0.0.1", secret, expected_ranks=1)

    def __enter__(self) -> "ReplicaServerOf":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def test_copies_of_an_earlier_round_are_refused_and_dropped_once_all_ranks_have_sent_newer_ones(
    server: ReplicaServer,
) -> None:
    send(server, 5, rank=1)
    server.begin_round(2)
    with pytest.raises(PeerError, match="another rendezvous round"):
        send(server, 6, rank=1)
    assert server.held() == [(1, copy(5))], "the ranks of the new round may need it"
    send(server, 7, round=2)
    assert server.held() == [(3, copy(7))]


def test_a_node_without_memory_refuses(server: ReplicaServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_server, "available_memory", lambda: 2 * SIZE - 1)
    with pytest.raises(PeerError, match="2 copies need 0.0 GiB, and the node has 0.0 GiB available"):
        send(server, 5)
    assert server.held_bytes() == 0


class Events:
    """Stands in for a reporter."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, object]] = []

    def event(self, kind: str, **data: object) -> None:
        self.seen.append((kind, data["because"]))


def test_a_copy_that_is_refused_is_sent_again_until_it_arrives(
    server: ReplicaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = iter([0, 0])
    monkeypatch.setattr(replica_server, "available_memory", lambda: next(refusals, None))
    monkeypatch.setattr(replicator, "_MIN_PAUSE_SECONDS", 0.01)
    events, (memory, header) = Events(), filled(5)
    sender = Replicator((server.host, server.port), SECRET, memory, SIZE, 3, events)
    assert not sender.has_arrived(5)
    sender.send(0, 5, header)
    wait_until(lambda: sender.has_arrived(5), "the copy has not arrived", 30)
    assert server.held() == [(3, copy(5))]
    assert [kind for kind, _ in events.seen] == ["replica.failed"], "once, however often it was refused"
    server.close()
    sender.send(0, 7, header | {"copy": [7, 0, 2]})
    wait_until(lambda: len(events.seen) == 2, "the failure is not reported", 30)
    assert not sender.has_arrived(7)


def test_a_rank_that_has_moved_to_another_node_fetches_from_the_memory_that_it_left(server: ReplicaServer) -> None:
    memory, _ = filled(5, slots=4)
    server.adopt(0, memory, {0: copy(5)}, SIZE)
    server.begin_round(2)
    assert fetched(server, 5, rank=0) == bytes(memory.data(0)[:SIZE])
    send(server, 7, round=2)
    assert server.held() == [(3, copy(7))]


def test_copies_are_released_in_the_round_that_has_read_them(server: ReplicaServer) -> None:
    send(server, 5)
    release((server.host, server.port), SECRET, 2)
    assert server.held() == [(3, copy(5))], "another round has not read them"
    release((server.host, server.port), SECRET, 1)
    assert (server.held(), server.held_bytes()) == ([], 0)


def test_the_copies_of_a_place_are_held_when_the_number_of_ranks_changes() -> None:
    run, keys, _ = platform_run(tiny_training(steps=20), checkpoint={"shadow_every_steps": 1})
    layout = ProcessLayout(nodes=2, processes_per_node=1)
    run = RunConfig.model_validate({**run.model_dump(), "layout": layout, "min_nodes": 1})
    copies = NodeCopies(NodeIdentity(0, "node0", "127.0.0.1", []))
    reply = JoinReply(state="placed", round=1, node_rank=1)
    memory = copies.shadow_of(run, 0, 1)
    assert memory is not None
    assert copies.peers(run, keys.job, reply).held == []
    assert copies.shadow_of(run, 0, 1) is memory, "after a restart in place"
    memory.open(SIZE)
    memory.begin(0, 7)
    memory.data(0)[:SIZE] = bytes(SIZE)
    memory.finish(0, 7, b'{"restart_count": 0}')
    alone = run.placed_on(1)
    assert copies.shadow_of(alone, 0, 0) is not memory
    peers = copies.peers(alone, keys.job, reply.model_copy(update={"round": 2, "node_rank": 0}))
    assert peers.held == [(1, CopyId(7, 0, 2))]
    assert peers.held_bytes >= SIZE, "they are freed once they are read"
    copies.close()


def test_a_closed_server_is_not_reachable_and_its_memory_is_freed() -> None:
    server = ReplicaServer("127.0.0.1", SECRET, expected_ranks=1)
    server.begin_round(1)
    send(server, 5)
    server.close()
    server.close()
    assert server.held_bytes() == 0
    with pytest.raises(ConnectionError):
        send(server, 7)


def test_a_node_that_does_not_answer_is_given_up(server: ReplicaServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_link, "SILENCE_SECONDS", 1)
    released = threading.Event()
    monkeypatch.setattr(server, "_receive", lambda *_: released.wait(60))
    with pytest.raises(TimeoutError, match="the other node has sent or taken nothing for 1 s"):
        send(server, 5)
    released.set()


def test_a_client_that_sends_nothing_holds_up_nobody_else(server: ReplicaServer) -> None:
    with socket.create_connection((server.host, server.port)):
        send(server, 5)
    assert server.held() == [(3, copy(5))]


@pytest.mark.parametrize("size", [8, 2**20 - 8, 2**20, 3 * 2**20 + 8])
def test_a_changed_bit_changes_the_digest(size: int) -> None:
    data = bytearray(place * 7 % 256 for place in range(size))
    before = digest_of(memoryview(data))
    for place in {0, size // 2, size - 1}:
        data[place] ^= 4
        assert digest_of(memoryview(data)) != before
        data[place] ^= 4
    assert digest_of(memoryview(data)) == before
