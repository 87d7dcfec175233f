"""The agreement of ranks on the copies that they continue from, over a real store, with each rank in a thread."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

from torch.distributed import HashStore, PrefixStore

from trainer.checkpoint.agreement import Agreement, Decision, RankReport
from trainer.contract.training import ProcessLayout
from trainer.resilience.peer_link import Peers
from trainer.resilience.replicas import CopyId, RankCopies

Fetch = Callable[[int, Decision], str]
NODES, PER_NODE = 3, 2


class Events:
    """Stands in for the reporters of all ranks."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, Any]]] = []

    def event(self, kind: str, **data: Any) -> None:
        self.seen.append((kind, data))


def copy_of(step: int, world_size: int = NODES * PER_NODE) -> CopyId:
    return CopyId(step, 0, world_size)


def peers_of(node: int, held: list[tuple[int, CopyId]]) -> Peers:
    domains = [("a",), ("a",), ("b",)] if node == 0 else []
    return Peers("127.0.0.1", 9000 + node, b"", held, 0, domains)


def agree(
    reports: list[RankReport], held: dict[int, list[tuple[int, CopyId]]], fetch: Fetch, events: Events
) -> list[tuple[list[Decision], tuple[str, int] | None]]:
    """Return the decisions that each rank saw, and where it sends its copies."""
    store = HashStore()

    def run(rank: int) -> tuple[list[Decision], tuple[str, int] | None]:
        mesh = SimpleNamespace(rank=rank, world_size=len(reports), open_store=lambda prefix: PrefixStore(prefix, store))
        layout = SimpleNamespace(layout=ProcessLayout(nodes=NODES, processes_per_node=PER_NODE))
        agreement = Agreement(mesh, layout, events, 0)
        agreement.report(reports[rank], peers_of(rank // PER_NODE, held.get(rank // PER_NODE, [])))
        decisions, is_final = [], False
        while not is_final:
            decisions.append(agreement.decide())
            if rank in decisions[-1].sources:
                because = fetch(rank, decisions[-1])
                agreement.report_fetched({rank: because} if because else {})
            is_final = agreement.is_final()
        return decisions, agreement.peer_of_node() if decisions[-1].is_replicated else None

    with ThreadPoolExecutor(len(reports)) as ranks:
        return list(ranks.map(run, range(len(reports))))


def reports_of(*steps: int) -> list[RankReport]:
    """Those of ranks of which all but the last two, of the third node, have copies of these steps."""
    having = RankReport(None, None, RankCopies({copy_of(step): None for step in steps}))
    return [having] * 4 + [RankReport(None, None, RankCopies({}))] * 2


def test_ranks_of_a_new_node_fetch_from_the_node_that_holds_their_copies() -> None:
    held = {1: [(rank, copy_of(step)) for rank in (4, 5) for step in (8, 12)]}
    events, fetched = Events(), []

    def fetch(rank: int, decision: Decision) -> str:
        fetched.append((rank, decision.copy, decision.sources[rank]))
        return ""

    found = agree(reports_of(8, 12, 13), held, fetch, events)
    assert sorted(fetched) == [(rank, copy_of(12), ("127.0.0.1", 9001)) for rank in (4, 5)]
    assert [decisions[-1].copy for decisions, _ in found] == [copy_of(12)] * 6
    # Two of three nodes are below one switch: one of them sends its copies to the other.
    assert [peer for _, peer in found[::PER_NODE]] == [("127.0.0.1", 9002), ("127.0.0.1", 9000), ("127.0.0.1", 9001)]
    reason = {"step": 13, "rank": 4, "because": "this rank has no copy of it"}
    assert events.seen == [("shadow.skipped", reason)]


def test_all_ranks_go_to_the_copy_before_if_one_cannot_fetch_its_own() -> None:
    held = {1: [(rank, copy_of(step)) for rank in (4, 5) for step in (8, 12)]}
    events = Events()

    def fetch(rank: int, decision: Decision) -> str:
        return "its content does not have its digest" if (rank, decision.copy) == (5, copy_of(12)) else ""

    found = agree(reports_of(8, 12), held, fetch, events)
    assert [[each.copy for each in decisions] for decisions, _ in found] == [[copy_of(12), copy_of(8)]] * 6
    assert events.seen == [
        ("shadow.skipped", {"step": 12, "rank": 5, "because": "its content does not have its digest"})
    ]


def test_without_a_usable_copy_there_is_nothing_to_fetch() -> None:
    found = agree(reports_of(8), {}, lambda *_: "", Events())
    assert [[each.copy for each in decisions] for decisions, _ in found] == [[None]] * 6


def test_one_node_without_memory_lets_all_ranks_send_nothing_and_is_reported() -> None:
    reports, events = reports_of(8), Events()
    reports[3] = RankReport(None, "6 copies need more", reports[3].copies)
    found = agree(reports, {}, lambda *_: "", events)
    assert all(decisions[-1].is_used and not decisions[-1].is_replicated for decisions, _ in found)
    assert ("replica.unused", {"rank": 3, "because": "6 copies need more"}) in events.seen
    reports[2], events = RankReport("2 copies need more", None, reports[2].copies), Events()
    found = agree(reports, {}, lambda *_: "", events)
    assert not any(decisions[-1].is_used for decisions, _ in found)
    assert [kind for kind, _ in events.seen if kind.endswith("unused")] == ["shadow.unused"]


def test_runs_without_copies_on_other_nodes_report_nothing() -> None:
    events = Events()
    found = agree([RankReport(None, "", RankCopies({}))] * 6, {}, lambda *_: "", events)
    assert not any(decisions[-1].is_replicated for decisions, _ in found)
    assert events.seen == []
