"""The order in which queued jobs are considered: a tournament up the quota tree. Pure.

Each node takes the best of its children: first a child whose next job stays within the child's own quota, then the one
with the higher priority class, then the one with the smallest dominant share (of the accelerator that its subtree uses
and recently used most, relative to its weight), then the one with the oldest job. Within a team: class, then age.
Children within their own quota go first so that slots which a team reclaims are not borrowed again before it has them.

Only the path of the job just considered changes, so each step costs one replacement in one heap per level.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from athanor.quotas.capacity import CapacityTree, Usage
from athanor.scheduling.policy.snapshot import Settings, Waiting

MAX_PRIORITY_BY_AGE = 10
CLASS = 10
NEVER = 1 << 62

Entry = tuple[bool, int, float, str, int, int]
"""(borrows, -class, share, job, child, slots that reach the parent)"""


@dataclass(slots=True)
class Candidate:
    """A queued job with indices into the tree and the pools.

    `slots` of its pool, at most `lasts` seconds, until `ends` if it started now.
    """

    job: Waiting
    leaf: int
    pool: int
    accelerator: str
    slots: int
    lasts: int
    ends: int
    effective: int


def effective_priority(job: Waiting, settings: Settings) -> int:
    """Return its priority, raised one class per `age_step_seconds` of waiting, at most to high."""
    if not settings.age_step_seconds or job.priority >= MAX_PRIORITY_BY_AGE:
        return job.priority
    return min(MAX_PRIORITY_BY_AGE, job.priority + CLASS * (job.waited_seconds // settings.age_step_seconds))


class Shares:
    """Dominant share of each node: the maximum over accelerators of (used and recent slots) / (weight x total)."""

    def __init__(self, tree: CapacityTree, totals: Mapping[str, int]) -> None:
        self._tree = tree
        self._weights = [max(node.weight, 1e-9) for node in tree.nodes]
        self._totals = {accelerator: float(max(1, total)) for accelerator, total in totals.items()}
        self.of = [0.0] * len(tree.nodes)
        self._used: dict[str, list[float]] = defaultdict(lambda: [0.0] * len(tree.nodes))
        for number, node in enumerate(tree.nodes):
            for accelerator in sorted(node.recent):
                self.add(number, accelerator, node.recent[accelerator])

    def add(self, leaf: int, accelerator: str, slots: float) -> None:
        """Add `slots`, which may be negative, to the usage of a leaf."""
        used, total = self._used[accelerator], self._totals.get(accelerator, 1.0)
        for number in self._tree.paths[leaf]:
            used[number] += slots
            share = used[number] / (self._weights[number] * total)
            if share > self.of[number]:
                self.of[number] = share
            elif slots < 0:
                self.of[number] = max(
                    of[number] / (self._weights[number] * self._totals.get(name, 1.0))
                    for name, of in self._used.items()
                )


class Order:
    """Yields candidates one at a time; call `settle` after each, once `usage` and `shares` reflect its decision.

    Each accelerator has its own tournament, so that a team's demand for one does not delay others for another. Between
    tournaments class decides, then age.
    """

    def __init__(
        self, tree: CapacityTree, usage: Usage, shares: Shares | None, candidates: Iterable[Candidate]
    ) -> None:
        of: dict[str, list[Candidate]] = defaultdict(list)
        for candidate in candidates:
            of[candidate.accelerator].append(candidate)
        self._tournaments = {
            accelerator: _Tournament(tree, usage, shares, accelerator, of[accelerator]) for accelerator in sorted(of)
        }

    def next(self) -> Candidate | None:
        """Return the next candidate, or None when there is none."""
        best = None
        for tournament in self._tournaments.values():
            head = tournament.head()
            if head is not None and (best is None or _rank(head) < _rank(best)):
                best = head
        return best

    def settle(self, candidate: Candidate) -> None:
        """Record that `candidate`, the last one of `next`, was considered."""
        self._tournaments[candidate.accelerator].settle(candidate)

    def borrowers_went_before(self, candidate: Candidate) -> frozenset[int]:
        """Return the nodes of its path below which borrowing jobs were considered already."""
        tournament = self._tournaments[candidate.accelerator]
        return frozenset(tournament.went_beyond.intersection(tournament.tree.paths[candidate.leaf]))


def _rank(candidate: Candidate) -> tuple[int, str]:
    return -candidate.effective, candidate.job.job_id


class _Tournament:
    """The order of the jobs for one accelerator.

    Shares only grow during a cycle, so an outdated entry is noticed at the latest when it reaches the top, and
    replaced.
    """

    def __init__(
        self, tree: CapacityTree, usage: Usage, shares: Shares | None, accelerator: str, candidates: Iterable[Candidate]
    ) -> None:
        self.tree = tree
        self.went_beyond: set[int] = set()
        self._shares = shares.of if shares is not None else [0.0] * len(tree.nodes)
        quota = tree.quotas.get(accelerator)
        self._own = quota.subtree if quota is not None else [NEVER] * len(tree.nodes)
        self._local = quota.local if quota is not None else [0] * len(tree.nodes)
        self._used = usage.quota_slots[accelerator] if quota is not None else [0] * len(tree.nodes)
        self._queues: dict[int, list[Candidate]] = defaultdict(list)
        for candidate in candidates:
            self._queues[candidate.leaf].append(candidate)
        for queue in self._queues.values():
            queue.sort(key=lambda candidate: candidate.job.job_id, reverse=True)
            queue.sort(key=lambda candidate: candidate.effective)
        self._heaps: dict[int, list[Entry]] = defaultdict(list)
        busy = {number for leaf in self._queues for number in tree.paths[leaf]}
        for number in sorted(busy, key=lambda number: (-len(tree.paths[number]), number)):
            if number in self._heaps:
                heapq.heapify(self._heaps[number])
            self._heaps[tree.parents[number]].append(self._entry(number))
        heapq.heapify(self._heaps[-1])
        self._head: Candidate | None = None

    def head(self) -> Candidate | None:
        if self._head is None and self._heaps[-1]:
            self._head = self._queues[self._best(-1)][-1]
        return self._head

    def _best(self, node: int) -> int:
        """Return the next leaf below `node`."""
        heap = self._heaps[node]
        while True:
            child = heap[0][4]
            leaf = self._best(child) if child in self._heaps else child
            entry = self._entry(child)
            if entry == heap[0]:
                return leaf
            heapq.heapreplace(heap, entry)

    def settle(self, candidate: Candidate) -> None:
        self._head = None
        child = candidate.leaf
        self._queues[child].pop()
        empty = not self._queues[child]
        for parent in (*self.tree.paths[child][1:], -1):
            heap = self._heaps[parent]
            assert heap[0][4] == child
            if heap[0][0]:
                self.went_beyond.add(child)
            if empty:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, self._entry(child))
            empty = not heap
            child = parent

    def _entry(self, child: int) -> Entry:
        heap = self._heaps.get(child)
        if heap:
            _, level, _, job_id, _, slots = heap[0]
        else:
            candidate = self._queues[child][-1]
            level, job_id, slots = -candidate.effective, candidate.job.job_id, candidate.slots
        used = self._used[child]
        beyond = slots > 0 and used + slots > self._own[child]
        unlent = self._local[child] - used
        if unlent > 0:
            slots = slots - unlent if slots > unlent else 0
        return (beyond, level, self._shares[child], job_id, child, slots)
