"""What is kept for a job that is next in line but does not fit yet, so that no later one delays it (EASY backfill).

A job that its pool, or the whole tree's quota, has no room for gets a reservation: the earliest moment by which, with
everything that ends until then at its latest, it fits, and the state of that moment (its shadow) with the job in it.
A later job passes if it ends before that moment, or fits into the shadow too. One reservation a pool.

A job that meets the limit or the borrow limit of a node holds only later jobs of that node's subtree to that: what
others take is not what it waits for.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from athanor.scheduling.order import NEVER, Candidate
from athanor.scheduling.standing import Held
from athanor.scheduling.tree import Usage


@dataclass(slots=True)
class Reservation:
    """`top`: the node whose limit is waited for, -1 for pool and tree. `free`: what is left in the pool at `starts`.
    `closed`: nothing of its pool passes at all."""

    head: Candidate
    starts: int
    usage: Usage
    free: int
    top: int = -1
    closed: bool = False

    def binds(self, candidate: Candidate) -> bool:
        """Whether the two could come into each other's way at all."""
        tree = self.usage.tree
        if self.top >= 0:
            return self.top in tree.paths[candidate.leaf]
        same = candidate.accelerator == self.head.accelerator and candidate.accelerator in tree.quotas
        return candidate.pool == self.head.pool or same or tree.has_limits

    def lets_pass(self, candidate: Candidate) -> bool:
        return (self._ends_before(candidate) and not self._stops(candidate)) or self.has_room(candidate)

    def has_room(self, candidate: Candidate) -> bool:
        """Whether it fits at that moment, beside the job that this is kept for."""
        if self._stops(candidate):
            return False
        if self.top < 0 and candidate.pool == self.head.pool and candidate.slots > self.free:
            return False
        return self.usage.wall(candidate.leaf, candidate.accelerator, candidate.slots, self.top) is None

    def _stops(self, candidate: Candidate) -> bool:
        return self.closed and candidate.pool == self.head.pool

    def book(self, candidate: Candidate) -> None:
        """It passed: if it is still there at that moment, what it takes is gone from the shadow."""
        if not self._ends_before(candidate):
            self.take(candidate)

    def _ends_before(self, candidate: Candidate) -> bool:
        return self.starts < NEVER and candidate.ends <= self.starts

    def take(self, candidate: Candidate) -> None:
        self.usage.add(candidate.leaf, candidate.accelerator, candidate.slots)
        if candidate.pool == self.head.pool:
            self.free -= candidate.slots

    def give_back(self, held: Held) -> None:
        """As if this job were gone by then: nothing to do if it is."""
        if held.ends > self.starts or held.ends == NEVER:
            self.usage.remove(held.leaf, held.accelerator, held.slots)
            if held.pool == self.head.pool:
                self.free += held.slots

    def take_again(self, held: Held) -> None:
        """Undoes `give_back`."""
        if held.ends > self.starts or held.ends == NEVER:
            self.usage.add(held.leaf, held.accelerator, held.slots)
            if held.pool == self.head.pool:
                self.free -= held.slots


def reserve(
    head: Candidate,
    usage: Usage,
    free: int,
    held: Iterable[Held],
    earlier: Sequence[Reservation],
    top: int = -1,
) -> Reservation:
    """The reservation of a job that does not fit now. `free`: of its pool, now. `held`: who holds slots that it could
    get. `earlier`: what was promised to others before."""
    state = Reservation(head, NEVER, usage.copy(), free, top)
    others = [other for other in earlier if other.binds(head)]
    changes: list[tuple[int, int, Held | Candidate]] = []
    tree = usage.tree
    anywhere = bool(tree.limited_paths[head.leaf])
    governed = head.accelerator if head.accelerator in tree.quotas else None
    for holder in held:
        if holder.ends < NEVER and (anywhere or holder.pool == head.pool or holder.accelerator == governed):
            changes.append((holder.ends, 0, holder))
    for other in others:
        if other.starts < NEVER:
            changes.append((other.starts, 1, other.head))
            if other.head.lasts < NEVER:
                changes.append((other.starts + other.head.lasts, 0, other.head))
    changes.sort(key=lambda change: change[:2])
    number = 0
    while number < len(changes):
        moment = changes[number][0]
        while number < len(changes) and changes[number][0] == moment:
            _, begins, change = changes[number]
            if begins:
                assert isinstance(change, Candidate)
                state.take(change)
            else:
                state.usage.remove(change.leaf, change.accelerator, change.slots)
                if change.pool == head.pool:
                    state.free += change.slots
            number += 1
        if state.has_room(head) and all(_agree(other, head, moment) for other in others):
            state.starts = moment
            break
    state.take(head)
    return state


def _agree(other: Reservation, head: Candidate, moment: int) -> bool:
    """Whether `head`, started at that moment, leaves what is kept for another alone."""
    if other.starts < NEVER and (other.starts <= moment or moment + head.lasts <= other.starts):
        return True
    return other.has_room(head)
