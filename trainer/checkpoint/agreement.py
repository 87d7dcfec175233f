"""The ranks agree on the copies that they continue from, by the rendezvous store: the first rank decides."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
    """What all ranks do. `copy`: what they continue from, None if from no copy. `sources`: where ranks fetch it.
    `is_used`: whether they take copies. `is_replicated`: whether they send them to other nodes."""

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

    def report(self, mine: RankReport, peers: Peers | None) -> None:
        """Report what this rank has, and of the first rank of a node what its agent holds."""
        usable = [[copy.step, copy.restart_count, loss] for copy, loss in mine.copies.usable.items()]
        content = [mine.problem, mine.replica_problem, usable, list(mine.copies.skipped)]
        self._store.set(f"rank{self._mesh.rank}", json.dumps(content))
        if self._mesh.rank % self._layout.processes_per_node == 0 and self._layout.nodes > 1:
            held = [[rank, copy.step, copy.restart_count] for rank, copy in peers.held] if peers is not None else []
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

    def report_fetched(self, because: str) -> None:
        """Report that this rank has fetched its copy, or why it has not."""
        self._store.set(f"fetched{self._number}/{self._mesh.rank}", json.dumps(because))

    def is_final(self) -> bool:
        """Return whether the decision is carried out: all ranks that were to fetch a copy have it."""
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
                {CopyId(step, made_in): loss for step, made_in, loss in usable},
                [(step, because) for step, because in skipped],
            )
            self._reports.append(RankReport(problem, replica_problem, copies))
        if self._layout.nodes > 1:
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
            [[(rank, CopyId(step, made_in)) for rank, step, made_in in node["held"]] for node in self._nodes],
            self._newest_stored,
            self._refused,
        )
        copy = [choice.copy.step, choice.copy.restart_count] if choice.copy is not None else None
        sources = {rank: self._nodes[node]["address"] for rank, node in choice.sources.items()}
        return [self._is_used, self._is_replicated, copy, choice.next_loss, sources]

    def _record_fetches(self, decision: Decision) -> bool:
        """Return whether all have succeeded. Raises torch's timeout error if a rank does not report."""
        is_complete = True
        for rank, node in self._choice.sources.items():
            because = self._read(f"fetched{self._number}/{rank}")
            if because and decision.copy is not None:
                self._refused.setdefault((rank, decision.copy), {})[node] = because
                is_complete = False
        return is_complete

    def _read(self, key: str) -> Any:
        self._store.wait([key], STARTUP_TIMEOUT)
        return json.loads(self._store.get(key))
