"""Rejections of an admission cycle, worded for the job's owner: what it waits for and what would let it start. Pure.

They name nodes, pools and budgets of the job itself; other teams appear in sums only.
"""

from dataclasses import dataclass

from athanor.jobs.reasons import Reason
from athanor.quotas.capacity import CapacityNode
from athanor.scheduling.policy.snapshot import Blocker, Budget, Pool


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a job does not start; shared by all jobs with the same request.

    `scope`: the node whose limit it meets, -1 for its pool or the tree. `waits`: capacity can become free by itself, so
    that a reservation makes sense.
    """

    reason: Reason
    detail: str
    unblocks: str
    blocker: Blocker
    scope: int = -1
    waits: bool = True


Holders = tuple[tuple[str, int], ...]


def limit_of_jobs(node: CapacityNode, running: int, holders: Holders, scope: int) -> Rejection:
    """Return the rejection by a node's limit on running jobs."""
    return Rejection(
        Reason.QUOTA_EXCEEDED,
        f"{running} of {node.max_running_jobs} running jobs of {node.name}.",
        f"Starts when a job of {node.name} ends; an administrator can raise its limit.",
        Blocker("limit", node.id, node.name, 1, holders),
        scope,
    )


def limit_of_slots(node: CapacityNode, used: int, slots: int, holders: Holders, scope: int) -> Rejection:
    """Return the rejection by a node's limit on slots."""
    most = node.max_slots or 0
    lacking = used + slots - most
    return Rejection(
        Reason.QUOTA_EXCEEDED,
        f"{used} of {most} slots that {node.name} may use are used; {lacking} more {_are(lacking)} needed.",
        f"Starts when jobs of {node.name} release {_slots(lacking)}; an administrator can raise its limit.",
        Blocker("limit", node.id, node.name, lacking, holders),
        scope,
    )


def quota(
    node: CapacityNode,
    accelerator: str,
    figures: tuple[int, int, int],
    slots: int,
    borrowers: tuple[int, int],
    holders: Holders,
    scope: int,
) -> Rejection:
    """`figures`: slots used, usable and borrowable.

    `borrowers`: slots borrowed by others, and their number of teams.
    """
    used, most, borrowable = figures
    lacking = used + slots - most
    own = f" ({most - borrowable} of its own, {borrowable} borrowed)" if borrowable else ""
    lent, teams = borrowers
    by_others = f", {lent} of them borrowed by {teams} other team{'s' if teams > 1 else ''}" if lent and teams else ""
    return Rejection(
        Reason.QUOTA_EXCEEDED,
        f"{used} of the {most} {accelerator} that {node.name} may use{own} are used{by_others}; "
        f"{lacking} more {_are(lacking)} needed.",
        f"Starts when jobs of {node.name} release {_slots(lacking)}; an administrator can raise its quota.",
        Blocker("quota", node.id, node.name, lacking, holders),
        scope,
    )


def exceeds_capacity(node: CapacityNode, accelerator: str, capacity: int, slots: int) -> Rejection:
    """Return the rejection of a job that its quotas can never admit."""
    return Rejection(
        Reason.QUOTA_EXCEEDED,
        f"{slots} {accelerator} are requested, and {node.name} can use at most {capacity}, even if all are idle.",
        "An administrator can raise its quota or limit; with fewer slots it could start.",
        Blocker("limit", node.id, node.name, slots - capacity),
        waits=False,
    )


def pool_full(pool: Pool, free: int, slots: int, nodes: int, holders: Holders) -> Rejection:
    """Return the rejection by a pool without enough free slots. `free` is negative if jobs hold more than they may."""
    lacking = slots - free
    blocker = Blocker("pool", pool.id, pool.name, lacking, holders)
    note = f" {pool.note}" if pool.note else ""
    smaller = f"; a fork with at most {_slots(pool.usable)} could start before." if pool.usable else "."
    if slots > pool.size - pool.spare:
        return Rejection(
            Reason.WAITING_FOR_CAPACITY,
            f"{slots} slots are needed, and jobs may hold {pool.size - pool.spare} of the {pool.size} of {pool.name}: "
            f"{pool.spare} are on spare nodes, which stay free for runs that lose a node.{note}",
            f"Starts when an administrator lowers spare_nodes of {pool.name}{smaller}",
            blocker,
            waits=False,
        )
    if slots > pool.usable:
        return Rejection(
            Reason.WAITING_FOR_CAPACITY,
            f"{pool.slots} of {pool.size} slots of {pool.name} are in service, and {slots} are needed.{note}",
            f"Starts when its other nodes return to service{smaller}",
            blocker,
            waits=False,
        )
    gang = nodes > 1 and free > 0
    together = f" together, on {nodes} nodes" if gang else ""
    unused = pool.slots - pool.usable + min(0, free)
    if unused > 0:
        note = f" {unused} more {_are(unused)} free on spare nodes, for runs that lose a node.{note}"
    return Rejection(
        Reason.WAITING_FOR_GANG if gang else Reason.WAITING_FOR_CAPACITY,
        f"{max(0, free)} of {pool.usable} slots of {pool.name} are free, and {slots} are needed{together}.{note}",
        f"Starts when running jobs release {_slots(lacking)} more.",
        blocker,
    )


def pool_disabled(pool: Pool) -> Rejection:
    """Return the rejection by a pool that accepts no jobs."""
    return Rejection(
        Reason.CLUSTER_DOWN,
        f"{pool.name} accepts no jobs. {pool.note or 'An administrator has disabled it.'}",
        f"Starts when {pool.name} is enabled again.",
        Blocker("pool", pool.id, pool.name),
        waits=False,
    )


def budget(of: Budget, left: int, cost: int) -> Rejection:
    """Return the rejection by a hard budget with less left than the start would reserve."""
    return Rejection(
        Reason.BUDGET_EXHAUSTED,
        f"{amount(cost, of.unit)} would be reserved of budget {of.name}, and {amount(max(0, left), of.unit)} are left.",
        f"Starts in the next period of {of.name} or when its amount is raised; a shorter time limit reserves less.",
        Blocker("budget", of.id, of.name, cost - left),
        waits=False,
    )


def not_in_turn(head: str, name: str, *, endless: bool, for_limit: bool) -> Rejection:
    """Return the rejection of a job that fits, but could delay an earlier one."""
    where = "of its team or group" if for_limit else "for these slots"
    shorter = "a time limit" if endless else "a shorter time limit"
    return Rejection(
        Reason.WAITING_FOR_CAPACITY,
        f"It would fit, but an earlier job {where} is next, and this one could delay it.",
        f"Starts when that job has started; with {shorter} it may start before.",
        Blocker("turn", head, name),
    )


def amount(value: int, unit: str) -> str:
    """Format slot-seconds as slot-hours, other amounts as millionths of a currency."""
    if unit.replace("_", "-") in ("slot-seconds", "slot-hours", ""):
        return f"{value / 3600:.1f} slot-hours"
    return f"{value / 1e6:.2f} {unit}"


def _slots(count: int) -> str:
    return f"{count} slot{'' if count == 1 else 's'}"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
