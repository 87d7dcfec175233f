"""In which order waiting jobs are considered: a tournament up the quota tree. Pure.

At each node the best of its children is taken: first one whose next job stays within the child's own quota, then that
with the job of the higher priority class, then that with the smallest dominant share (of the accelerator of which its
subtree uses and lately used most, for its weight), then that with the oldest job. Within a team: class, then age.
Who keeps to what is its own goes first so that slots which a team gets back are not borrowed again before it has them.

Only what is on the path of the job just considered changes, so each step costs one replacement in one heap per level.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from athanor.scheduling.snapshot import Settings, Waiting
from athanor.scheduling.tree import Tree, Usage

HIGHEST_BY_AGE = 10
CLASS = 10
NEVER = 1 << 62

Entry = tuple[bool, int, float, str, int, int]
"""Beyond its own quota, -class, share, job, child, slots that arrive at the parent."""


@dataclass(slots=True)
class Candidate:
    """A waiting job in the numbers of the tree and the pools. `slots`: what it takes of its pool.
    `lasts` seconds at the longest, `ends`: the moment until which, if it started now."""

    job: Waiting
    leaf: int
    pool: int
    accelerator: str
    slots: int
    lasts: int
    ends: int
    effective: int


def effective_priority(job: Waiting, settings: Settings) -> int:
    """Its priority, one class higher for each `age_step_seconds` that it has waited, but by age no higher than high."""
    if not settings.age_step_seconds or job.priority >= HIGHEST_BY_AGE:
        return job.priority
    return min(HIGHEST_BY_AGE, job.priority + CLASS * (job.waited_seconds // settings.age_step_seconds))


class Shares:
    """Each node's dominant share: the largest, over accelerators, of (slots used and lately used) / (weight x all)."""

    def __init__(self, tree: Tree, totals: Mapping[str, int]) -> None:
        self._tree = tree
        self._weights = [max(node.weight, 1e-9) for node in tree.nodes]
        self._totals = {accelerator: float(max(1, total)) for accelerator, total in totals.items()}
        self.of = [0.0] * len(tree.nodes)
        self._used: dict[str, list[float]] = defaultdict(lambda: [0.0] * len(tree.nodes))
        for number, node in enumerate(tree.nodes):
            for accelerator in sorted(node.recent):
                self.add(number, accelerator, node.recent[accelerator])

    def add(self, leaf: int, accelerator: str, slots: float) -> None:
        """So many more are used, or fewer."""
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
    """Gives candidates one at a time; `settle` must follow each, after what came of it is in `usage` and `shares`.

    Each accelerator has its tournament: what a team asks of one stands in nobody's way for another. Between them the
    class decides, then age.
    """

    def __init__(self, tree: Tree, usage: Usage, shares: Shares | None, candidates: Iterable[Candidate]) -> None:
        of: dict[str, list[Candidate]] = defaultdict(list)
        for candidate in candidates:
            of[candidate.accelerator].append(candidate)
        self._tournaments = {
            accelerator: _Tournament(tree, usage, shares, accelerator, of[accelerator]) for accelerator in sorted(of)
        }

    def next(self) -> Candidate | None:
        best = None
        for tournament in self._tournaments.values():
            head = tournament.head()
            if head is not None and (best is None or _rank(head) < _rank(best)):
                best = head
        return best

    def settle(self, candidate: Candidate) -> None:
        """`candidate`, which `next` gave, was considered."""
        self._tournaments[candidate.accelerator].settle(candidate)

    def borrowers_went_before(self, candidate: Candidate) -> frozenset[int]:
        """Nodes of its path of whose subtrees jobs beyond the node's own quota were considered already."""
        tournament = self._tournaments[candidate.accelerator]
        return frozenset(tournament.went_beyond.intersection(tournament.tree.paths[candidate.leaf]))


def _rank(candidate: Candidate) -> tuple[int, str]:
    return -candidate.effective, candidate.job.job_id


class _Tournament:
    """The order of the jobs for one accelerator. Shares only grow while it lasts: an entry that was made when one was
    smaller is found on top at the latest, and is made anew."""

    def __init__(
        self, tree: Tree, usage: Usage, shares: Shares | None, accelerator: str, candidates: Iterable[Candidate]
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
        """The leaf below `node` that is next."""
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
        kept = self._local[child] - used
        if kept > 0:
            slots = slots - kept if slots > kept else 0
        return (beyond, level, self._shares[child], job_id, child, slots)
