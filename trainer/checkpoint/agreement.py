"""The ranks agree on the copies that they continue from, by the rendezvous store: the first rank decides."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

from torch.distributed import Store

from trainer.contract.run import RunConfig
from trainer.contract.timeouts import STARTUP_TIMEOUT
from trainer.parallel.mesh import Mesh
from trainer.reporting.reporter import Reporter
from trainer.resilience.peer_link import Peers
from trainer.resilience.replicas import Choice, CopyId, RankCopies, choose_copy, place_replicas


@dataclass(frozen=True)
class RankReport:
    """What a rank has. `problem`: why it cannot take copies, None if it can, and empty if none were asked for.
    `replica_problem`: likewise, for sending copies to other nodes. `copies`: as `RankCopies`."""

    problem: str | None
    replica_problem: str | None
    copies: RankCopies


@dataclass(frozen=True)
class Decision:
    """What all ranks do. `copy`: what they continue from, None if from no copy. `sources`: where the copies of ranks
    are, as in `Choice`. `is_used`: whether they take copies. `is_replicated`: whether they send them to other nodes."""

    is_used: bool
    is_replicated: bool
    copy: CopyId | None
    next_loss: float | None
    sources: Mapping[int, tuple[str, int]] = field(default_factory=dict)


class Agreement:
    """One agreement of all ranks. Each reports what it has; then they go through decisions, until all ranks that were
    to fetch a copy have it, or there is nothing to fetch."""

    def __init__(self, mesh: Mesh, run: RunConfig, reporter: Reporter, newest_stored: int) -> None:
        """`newest_stored`: step of the checkpoint that is used if no copy is newer, 0 without one."""
        self._mesh, self._layout, self._reporter, self._newest_stored = mesh, run.layout, reporter, newest_stored
        self._store: Store = mesh.open_store("shadow/")
        self._number = -1
        self._decision: Decision | None = None
        # Of the first rank:
        self._reports: list[RankReport] = []
        self._nodes: list[dict[str, Any]] = []
        self._choice = Choice(None)
        self._refused: dict[tuple[int, CopyId], dict[int, str]] = {}
        self._incomplete: dict[CopyId, tuple[int, str]] = {}

    def report(self, mine: RankReport, peers: Peers | None) -> None:
        """Report what this rank has, and of the first rank of a node what its agent holds."""
        usable = [[astuple(copy), loss] for copy, loss in mine.copies.usable.items()]
        content = [mine.problem, mine.replica_problem, usable, list(mine.copies.skipped)]
        self._store.set(f"rank{self._mesh.rank}", json.dumps(content))
        if self._mesh.rank % self._layout.processes_per_node == 0:
            held = [[rank, astuple(copy)] for rank, copy in peers.held] if peers is not None else []
            address = [peers.host, peers.port] if peers is not None else None
            node = {"address": address, "held": held}
            self._store.set(f"node{self._mesh.rank // self._layout.processes_per_node}", json.dumps(node))
        if self._mesh.rank == 0:
            self._gather()
            self._place(peers)

    def decide(self) -> Decision:
        """Return the next decision."""
        self._number += 1
        key = f"decision{self._number}"
        if self._mesh.rank == 0:
            self._store.set(key, json.dumps(self._next_decision()))
        is_used, is_replicated, copy, next_loss, sources = self._read(key)
        self._decision = Decision(
            is_used, is_replicated, CopyId(*copy) if copy is not None else None, next_loss,
            {int(rank): (host, port) for rank, (host, port) in sources.items()},
        )  # fmt: skip
        return self._decision

    def is_resharded(self, decision: Decision) -> bool:
        """Return whether all ranks read their parts of the state of another number of ranks."""
        return decision.copy is not None and decision.copy.world_size != self._mesh.world_size

    def publish(self, content: str) -> None:
        """Let all ranks have what the first one knows of the copies of this decision."""
        self._store.set(f"published{self._number}", json.dumps(content))

    def published(self) -> str:
        """Return what the first rank has published for this decision."""
        return str(self._read(f"published{self._number}"))

    def report_fetched(self, unusable: Mapping[int, str], missing: str = "") -> None:
        """Report that this rank has fetched its copy, or read its part of the state of another number of ranks; or else
        which ranks' copies are unusable, and why, or which part all of them lack."""
        self._store.set(f"fetched{self._number}/{self._mesh.rank}", json.dumps([list(unusable.items()), missing]))

    def is_final(self) -> bool:
        """Return whether the decision is carried out: all ranks that were to fetch a copy, or read parts, have it."""
        decision = self._decision
        assert decision is not None, "decided before"
        is_final, key = True, f"outcome{self._number}"
        if decision.sources and self._mesh.rank == 0:
            is_final = self._record_fetches(decision)
            self._store.set(key, json.dumps(is_final))
        elif decision.sources:
            is_final = self._read(key)
        if is_final and self._mesh.rank == 0:
            for step, (rank, because) in self._choice.skipped.items():
                self._reporter.event("shadow.skipped", step=step, rank=rank, because=because)
        return is_final

    def peer_of_node(self) -> tuple[str, int]:
        """Return where the ranks of this node send their copies."""
        host, port = self._read(f"peer{self._mesh.rank // self._layout.processes_per_node}")
        return host, port

    def _gather(self) -> None:
        self._store.wait([f"rank{rank}" for rank in range(self._mesh.world_size)], STARTUP_TIMEOUT)
        for rank in range(self._mesh.world_size):
            problem, replica_problem, usable, skipped = self._read(f"rank{rank}")
            copies = RankCopies(
                {CopyId(*copy): loss for copy, loss in usable},
                [(step, because) for step, because in skipped],
            )
            self._reports.append(RankReport(problem, replica_problem, copies))
        self._nodes = [self._read(f"node{node}") for node in range(self._layout.nodes)]
        self._report_first("shadow.unused", [each.problem for each in self._reports])
        if self._is_used:
            self._report_first("replica.unused", [each.replica_problem for each in self._reports])

    def _report_first(self, event: str, problems: Sequence[str | None]) -> None:
        rank = next((rank for rank, problem in enumerate(problems) if problem is not None), None)
        if rank is None or not problems[rank]:
            return
        if event == "shadow.unused":
            self._reporter.event("shadow.unused", rank=rank, because=problems[rank])
        else:
            self._reporter.event("replica.unused", rank=rank, because=problems[rank])

    @property
    def _is_used(self) -> bool:
        return all(each.problem is None for each in self._reports)

    @property
    def _is_replicated(self) -> bool:
        have_memory = self._is_used and all(each.replica_problem is None for each in self._reports)
        return have_memory and all(node["address"] is not None for node in self._nodes)

    def _place(self, peers: Peers | None) -> None:
        if not self._is_replicated:
            return
        assert peers is not None, "the first rank has an agent, too"
        for node, peer in enumerate(place_replicas(peers.domains)):
            self._store.set(f"peer{node}", json.dumps(self._nodes[peer]["address"]))

    def _next_decision(self) -> list[Any]:
        self._choice = choice = choose_copy(
            [each.copies for each in self._reports],
            [[(rank, CopyId(*copy)) for rank, copy in node["held"]] for node in self._nodes],
            self._newest_stored,
            self._refused,
            self._incomplete,
        )
        copy = astuple(choice.copy) if choice.copy is not None else None
        sources = {rank: self._nodes[node]["address"] for rank, node in choice.sources.items()}
        return [self._is_used, self._is_replicated, copy, choice.next_loss, sources]

    def _record_fetches(self, decision: Decision) -> bool:
        """Return whether all have succeeded. Raises torch's timeout error if a rank does not report."""
        is_complete, copy, sources = True, decision.copy, self._choice.sources
        assert copy is not None, "there are no sources without it"
        for reader in range(self._mesh.world_size) if self.is_resharded(decision) else sources:
            unusable, missing = self._read(f"fetched{self._number}/{reader}")
            for rank, because in unusable:
                self._refused.setdefault((rank, copy), {})[sources[rank]] = because
            if missing:
                self._incomplete.setdefault(copy, (reader, missing))
            is_complete = is_complete and not unusable and not missing
        return is_complete

    def _read(self, key: str) -> Any:
        self._store.wait([key], STARTUP_TIMEOUT)
        return json.loads(self._store.get(key))
