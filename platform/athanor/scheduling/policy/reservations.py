"""Reservations for the next job that does not fit yet, so that no later job delays it (EASY backfill).

A job that its pool or the tree's quota lacks capacity for gets a reservation: the earliest time at which it fits if
every job runs to its time limit, and the state of that time (the shadow) with the job in it. A later job may start if
it ends before that time or fits into the shadow too. There is one reservation per pool.

A job that meets the limit or the borrow limit of a node constrains only later jobs of that node's subtree: other jobs
do not use what it waits for.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from athanor.quotas.capacity import Usage
from athanor.scheduling.policy.cluster_state import Held
from athanor.scheduling.policy.order import NEVER, Candidate


@dataclass(slots=True)
class Reservation:
    """Capacity reserved for `head` from `starts` on.

    `top`: the node whose limit it waits for, -1 for pool and tree. `free`: slots left in the pool at `starts`.
    `closed`: no later job of its pool may start before (backfill is off).
    """

    head: Candidate
    starts: int
    usage: Usage
    free: int
    top: int = -1
    closed: bool = False

    def binds(self, candidate: Candidate) -> bool:
        """Return whether the two compete for any capacity."""
        tree = self.usage.tree
        if self.top >= 0:
            return self.top in tree.paths[candidate.leaf]
        same = candidate.accelerator == self.head.accelerator and candidate.accelerator in tree.quotas
        return candidate.pool == self.head.pool or same or tree.has_limits

    def allows(self, candidate: Candidate) -> bool:
        """Return whether a job may start without delaying the job with the reservation."""
        return (self._ends_before(candidate) and not self._stops(candidate)) or self.has_room(candidate)

    def has_room(self, candidate: Candidate) -> bool:
        """Return whether it fits at that time, beside the job with the reservation."""
        if self._stops(candidate):
            return False
        if self.top < 0 and candidate.pool == self.head.pool and candidate.slots > self.free:
            return False
        return self.usage.first_constraint(candidate.leaf, candidate.accelerator, candidate.slots, self.top) is None

    def _stops(self, candidate: Candidate) -> bool:
        return self.closed and candidate.pool == self.head.pool

    def book(self, candidate: Candidate) -> None:
        """Record that it starts: if it still runs at that time, the shadow shrinks by its slots."""
        if not self._ends_before(candidate):
            self.take(candidate)

    def _ends_before(self, candidate: Candidate) -> bool:
        return self.starts < NEVER and candidate.ends <= self.starts

    def take(self, candidate: Candidate) -> None:
        """Count a job that starts as holding slots at the reserved time."""
        self.usage.add(candidate.leaf, candidate.accelerator, candidate.slots)
        if candidate.pool == self.head.pool:
            self.free -= candidate.slots

    def release(self, held: Held) -> None:
        """Assume that this job has released its slots by then; no change if it ends before."""
        if held.ends > self.starts or held.ends == NEVER:
            self.usage.remove(held.leaf, held.accelerator, held.slots)
            if held.pool == self.head.pool:
                self.free += held.slots

    def undo_release(self, held: Held) -> None:
        """Undo `release`."""
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
    """Return the reservation of a job that does not fit now.

    `free`: slots free in its pool now. `held`: jobs whose slots it could get. `earlier`: reservations made before.
    """
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
    """Return whether `head`, started at that time, leaves another reservation intact."""
    if other.starts < NEVER and (other.starts <= moment or moment + head.lasts <= other.starts):
        return True
    return other.has_room(head)
