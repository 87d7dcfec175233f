"""Mutation test of the policy's properties: with any rule of the policy removed, one of them fails."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from athanor.quotas import capacity
from athanor.scheduling.policy import cluster_state, cycle, order, preemption, reservations
from athanor.scheduling.policy.snapshot import Pool
from tests.control_plane.scheduling.properties import run

SEEDS = 2000  # a loop ends with the first that notices; some changes are noticed by one in 400
EXCEEDED = "nothing_is_exceeded_and_nothing_idles"
Plant = Callable[[pytest.MonkeyPatch], None]


def _edited_quota(change: Callable[[capacity.Quota], None]) -> Plant:
    def plant(patch: pytest.MonkeyPatch) -> None:
        original = capacity.CapacityTree._quota

        def changed(self: capacity.CapacityTree, accelerator: str) -> capacity.Quota:
            quota = original(self, accelerator)
            change(quota)
            return quota

        patch.setattr(capacity.CapacityTree, "_quota", changed)

    return plant


def _borrow_as_you_like(quota: capacity.Quota) -> None:
    quota.most = [most + 5 for most in quota.most]


def _lend_all(quota: capacity.Quota) -> None:
    quota.local = [0] * len(quota.local)


def _lend_nothing(quota: capacity.Quota) -> None:
    quota.most = [min(most, own) for most, own in zip(quota.most, quota.subtree, strict=True)]


def no_limits_of_jobs(patch: pytest.MonkeyPatch) -> None:
    original = capacity.CapacityTree.__init__

    def made(self: capacity.CapacityTree, nodes: Any) -> None:
        original(self, [replace(node, max_running_jobs=None, max_slots=None) for node in nodes])

    patch.setattr(capacity.CapacityTree, "__init__", made)


def no_budgets(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cycle.Cycle, "_budget_short", lambda *_: None)


def everything_passes_the_head(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reservations.Reservation, "allows", lambda *_: True)


def nothing_passes_the_head(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reservations.Reservation, "allows", lambda *_: False)


def what_passes_is_not_booked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reservations.Reservation, "book", lambda *_: None)


def nobody_is_protected(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(preemption, "_may_be_asked", lambda holder, *_: holder.stoppable and not holder.leaving)


def anybody_gives_way(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(preemption, "_gives_way", lambda *_: True)
    patch.setattr(preemption, "_lowers_potential", lambda *_: True)


def some_give_way_in_vain(patch: pytest.MonkeyPatch) -> None:
    original = preemption._Room.fits_now
    patch.setattr(preemption._Room, "fits_now", lambda room: original(room) or room._free > 1)


def borrowers_come_first(patch: pytest.MonkeyPatch) -> None:
    original = order._Tournament._entry

    def entry(self: Any, child: int) -> Any:
        return (False, *original(self, child)[1:])

    patch.setattr(order._Tournament, "_entry", entry)


def age_counts_for_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cycle, "effective_priority", lambda job, _: job.priority)


def ties_are_left_to_chance(patch: pytest.MonkeyPatch) -> None:
    for module in (cycle, cluster_state):
        patch.setattr(module, "sorted", lambda things, **_: list(things), raising=False)


def jobs_use_spare_nodes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Pool, "usable", property(lambda pool: pool.slots))


def lost_nodes_leave_spare_nodes_free(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Pool, "usable", property(lambda pool: max(0, pool.slots - pool.spare)))


PLANTS: dict[str, tuple[Plant, str]] = {
    "borrow limits ignored": (_edited_quota(_borrow_as_you_like), EXCEEDED),
    "lend limits ignored": (_edited_quota(_lend_all), EXCEEDED),
    "nothing is lent": (_edited_quota(_lend_nothing), EXCEEDED),
    "limits ignored": (no_limits_of_jobs, EXCEEDED),
    "budgets ignored": (no_budgets, EXCEEDED),
    "spare nodes used": (jobs_use_spare_nodes, EXCEEDED),
    "spare nodes not used for lost ones": (lost_nodes_leave_spare_nodes_free, EXCEEDED),
    "all backfill": (everything_passes_the_head, "a_promised_start_is_kept"),
    "no backfill": (nothing_passes_the_head, EXCEEDED),
    "backfill not booked": (what_passes_is_not_booked, "a_promised_start_is_kept"),
    "protection ignored": (nobody_is_protected, "protected_time_is_kept"),
    "victims without a claim": (anybody_gives_way, EXCEEDED),
    "victims in vain": (some_give_way_in_vain, EXCEEDED),
    "borrowers first": (borrowers_come_first, "jobs_at_rest_stay_at_rest"),
    "no ageing": (age_counts_for_nothing, "nobody_starves"),
    "order of lists": (ties_are_left_to_chance, "the_same_snapshot_gives_the_same_decisions"),
}


@pytest.mark.parametrize("name", PLANTS)
def test_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, noticed_by = PLANTS[name]
    plant(monkeypatch)
    with pytest.raises((AssertionError, IndexError)):
        for seed in range(SEEDS):
            run(noticed_by, seed)
