"""Choose the running jobs that checkpoint and release their slots for a job with a higher claim. Pure.

A claim is (a) reclaim: with it, the job's leaf and all above it, below the ancestor it shares with the victim, stay
within their own quota, while on the victim's side all use more than theirs; or (b) priority: the victim is of the same
leaf, of a lower priority (as given, never by age), and the leaf borrows no more afterwards than before.

Each preemption lowers `potential`: slots that leaves borrow, then slots held at low priority while higher ones wait.
So no chain of preemptions can return to an earlier state (tests/control_plane/scheduling).
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import pairwise

from athanor.quotas.capacity import CapacityTree, Usage
from athanor.scheduling.policy.cluster_state import Held
from athanor.scheduling.policy.order import Candidate
from athanor.scheduling.policy.reservations import Reservation
from athanor.scheduling.policy.snapshot import Settings

MAX_DOUBLINGS = 10

Potential = tuple[int, tuple[tuple[int, int], ...]]


def potential(tree: CapacityTree, held: Iterable[tuple[int, str, int, int]]) -> Potential:
    """Return the potential of held slots, given as (leaf, accelerator, slots, priority).

    It orders by the slots that leaves hold beyond their own quota, then by the slots held at each priority from the
    highest, where more is smaller. Replacing the victims of a preemption by its claimant lowers it.
    """
    used: Counter[tuple[int, str]] = Counter()
    at_priority: Counter[int] = Counter()
    for leaf, accelerator, slots, priority in held:
        used[leaf, accelerator] += slots
        at_priority[priority] += slots
    governed = [(leaf, quota, slots) for (leaf, name), slots in used.items() if (quota := tree.quotas.get(name))]
    borrowed = sum(max(0, slots - quota.subtree[leaf]) for leaf, quota, slots in governed)
    return borrowed, tuple((-priority, -at_priority[priority]) for priority in sorted(at_priority, reverse=True))


def choose_victims(
    candidate: Candidate,
    usage: Usage,
    free: int,
    held: Iterable[Held],
    binding: Sequence[Reservation],
    settings: Settings,
    now: int,
    gone_before: frozenset[int],
) -> list[Held] | None:
    """Return the jobs to preempt so that `candidate` fits, now and beside the reservations of others.

    They are those that lose the least work, and a minimal set. Empty if the jobs that are already leaving free enough,
    None if preemption does not help.

    `held`: all jobs that hold slots; `free`: slots free in the candidate's pool. `gone_before`: nodes of the
    candidate's path below which borrowers were considered before it: there the victims, which would borrow again, could
    get their slots back before the candidate.
    """
    held = list(held)
    room = _Room(candidate, usage, free, binding)
    for holder in held:
        if holder.leaving:
            room.release(holder)
    if room.fits_now():
        return []
    leaf = candidate.leaf
    asked = _could_be_asked(candidate, held, room.usage, settings, now)
    reclaims = _reclaims_below(candidate, room.usage, gone_before)
    give_way = {other: _gives_way(other, candidate, reclaims, room.usage) for other in {one.leaf for one in asked}}
    asked = [one for one in asked if one.leaf == leaf or give_way[one.leaf]]
    if room.free_with(asked) < candidate.slots:
        return None
    before = room.usage.copy()
    victims: list[Held] = []
    by_work_lost = partial(_work_lost, now=now)
    for holder in sorted(asked, key=by_work_lost):
        if holder.leaf == leaf or _gives_way(holder.leaf, candidate, reclaims, room.usage):
            victims.append(holder)
            room.release(holder)
            if room.fits():
                break
    if not room.fits():
        return None
    for holder in sorted(victims, key=by_work_lost, reverse=True):
        room.undo_release(holder)
        if room.fits():
            victims.remove(holder)
        else:
            room.release(holder)
    return victims if _lowers_potential(candidate, victims, before) else None


class _Room:
    """The capacity for one job if others released their slots."""

    def __init__(self, candidate: Candidate, usage: Usage, free: int, binding: Sequence[Reservation]) -> None:
        self._candidate = candidate
        self.usage = usage.copy()
        self._free = free
        self._shadows = [
            Reservation(one.head, one.starts, one.usage.copy(), one.free, one.top, one.closed) for one in binding
        ]

    def release(self, holder: Held) -> None:
        self.usage.remove(holder.leaf, holder.accelerator, holder.slots)
        if holder.pool == self._candidate.pool:
            self._free += holder.slots
        for shadow in self._shadows:
            shadow.release(holder)

    def undo_release(self, holder: Held) -> None:
        self.usage.add(holder.leaf, holder.accelerator, holder.slots)
        if holder.pool == self._candidate.pool:
            self._free -= holder.slots
        for shadow in self._shadows:
            shadow.undo_release(holder)

    def free_with(self, holders: Iterable[Held]) -> int:
        """Return the slots free in the pool if all `holders` released theirs."""
        return self._free + sum(one.slots for one in holders if one.pool == self._candidate.pool)

    def fits_now(self) -> bool:
        candidate = self._candidate
        if candidate.slots > self._free:
            return False
        return self.usage.first_constraint(candidate.leaf, candidate.accelerator, candidate.slots) is None

    def fits(self) -> bool:
        """Return whether it fits now and beside the reservations of others."""
        return self.fits_now() and all(shadow.has_room(self._candidate) for shadow in self._shadows)


def _could_be_asked(
    candidate: Candidate, held: Sequence[Held], usage: Usage, settings: Settings, now: int
) -> list[Held]:
    """Only of the same accelerator: between accelerators no order puts the candidate before its victim."""
    tree, accelerator, pool, leaf = usage.tree, candidate.accelerator, candidate.pool, candidate.leaf
    anywhere = accelerator in tree.quotas or bool(tree.limited_paths[leaf])
    return [
        one
        for one in held
        if one.accelerator == accelerator
        and (anywhere or one.pool == pool)
        and (one.leaf != leaf or one.priority < candidate.job.priority)
        and _may_be_asked(one, settings, now)
    ]


def _may_be_asked(holder: Held, settings: Settings, now: int) -> bool:
    if holder.leaving or not holder.stoppable:
        return False
    protected = settings.protected_seconds << min(holder.preemptions, MAX_DOUBLINGS)
    return now - holder.began >= protected


def _work_lost(holder: Held, now: int) -> tuple[int, int, str]:
    return holder.unsaved(now) * holder.slots, holder.slots, holder.job_id


def _reclaims_below(candidate: Candidate, usage: Usage, gone_before: frozenset[int]) -> frozenset[int]:
    """Return ancestors of the candidate's leaf below which it stays within its own quotas and is first in line."""
    if candidate.accelerator not in usage.tree.quotas:
        return frozenset()
    path = usage.tree.paths[candidate.leaf]
    return frozenset(
        ancestor
        for below, ancestor in pairwise(path)
        if below not in gone_before
        and usage.is_within_nominal(candidate.leaf, candidate.accelerator, candidate.slots, ancestor)
    )


def _gives_way(leaf: int, candidate: Candidate, reclaims: frozenset[int], usage: Usage) -> bool:
    """Return whether jobs of another leaf hold slots that the candidate can reclaim."""
    if not reclaims:
        return False
    tree = usage.tree
    common = tree.common_ancestor(leaf, candidate.leaf)
    if common not in reclaims:
        return False
    return all(usage.borrowed(number, candidate.accelerator) > 0 for number in tree.below(common, leaf))


def _lowers_potential(candidate: Candidate, victims: Sequence[Held], before: Usage) -> bool:
    """Return whether the leaves borrow less in total, or as much while only lower-priority jobs are preempted."""
    change = Counter({(candidate.leaf, candidate.accelerator): candidate.slots})
    for holder in victims:
        change[holder.leaf, holder.accelerator] -= holder.slots
    more = 0
    for (leaf, accelerator), slots in change.items():
        quota = before.tree.quotas.get(accelerator)
        if quota is not None:
            used = before.quota_slots[accelerator][leaf]
            own = quota.subtree[leaf]
            more += max(0, used + slots - own) - max(0, used - own)
    return more < 0 or (more == 0 and all(one.priority < candidate.job.priority for one in victims))
