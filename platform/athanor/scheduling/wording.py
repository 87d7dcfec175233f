"""What a waiting job's owner reads: what it waits for, and what would let it start. Pure.

Names of nodes, pools and budgets that are the job's own; of other teams only sums.
"""

from dataclasses import dataclass

from athanor.jobs.reasons import Reason
from athanor.scheduling.snapshot import Blocker, Budget, Pool, QuotaNode


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why a job does not start; shared by all that ask for the same. `scope`: the node whose limit it meets, -1 for
    its pool or the whole tree. `waits`: room can come by itself, so that something can be kept for it."""

    reason: Reason
    detail: str
    unblocks: str
    blocker: Blocker
    scope: int = -1
    waits: bool = True


Holders = tuple[tuple[str, int], ...]


def limit_of_jobs(node: QuotaNode, running: int, holders: Holders, scope: int) -> Verdict:
    return Verdict(
        Reason.QUOTA_EXCEEDED,
        f"{running} of {node.max_running_jobs} running jobs of {node.name}.",
        f"Starts when a job of {node.name} ends; an administrator can raise its limit.",
        Blocker("limit", node.id, node.name, 1, holders),
        scope,
    )


def limit_of_slots(node: QuotaNode, used: int, slots: int, holders: Holders, scope: int) -> Verdict:
    most = node.max_slots or 0
    lacking = used + slots - most
    return Verdict(
        Reason.QUOTA_EXCEEDED,
        f"{used} of {most} slots that {node.name} may use are used; {lacking} more {_are(lacking)} needed.",
        f"Starts when jobs of {node.name} give back {_slots(lacking)}; an administrator can raise its limit.",
        Blocker("limit", node.id, node.name, lacking, holders),
        scope,
    )


def quota(
    node: QuotaNode,
    accelerator: str,
    figures: tuple[int, int, int],
    slots: int,
    borrowers: tuple[int, int],
    holders: Holders,
    scope: int,
) -> Verdict:
    """`figures`: used, the most that may be used, of that borrowed at most. `borrowers`: slots and teams of others."""
    used, most, borrowable = figures
    lacking = used + slots - most
    own = f" ({most - borrowable} of its own, {borrowable} borrowed)" if borrowable else ""
    lent, teams = borrowers
    by_others = f", {lent} of them borrowed by {teams} other team{'s' if teams > 1 else ''}" if lent and teams else ""
    return Verdict(
        Reason.QUOTA_EXCEEDED,
        f"{used} of the {most} {accelerator} that {node.name} may use{own} are used{by_others}; "
        f"{lacking} more {_are(lacking)} needed.",
        f"Starts when jobs of {node.name} give back {_slots(lacking)}; an administrator can raise its quota.",
        Blocker("quota", node.id, node.name, lacking, holders),
        scope,
    )


def never(node: QuotaNode, accelerator: str, capacity: int, slots: int) -> Verdict:
    return Verdict(
        Reason.QUOTA_EXCEEDED,
        f"{slots} {accelerator} are asked, and {node.name} may never use more than {capacity}, even if all are idle.",
        "An administrator can raise its quota or limit; with fewer slots it could start.",
        Blocker("limit", node.id, node.name, slots - capacity),
        waits=False,
    )


def pool_full(pool: Pool, free: int, slots: int, nodes: int, holders: Holders) -> Verdict:
    lacking = slots - free
    blocker = Blocker("pool", pool.id, pool.name, lacking, holders)
    note = f" {pool.note}" if pool.note else ""
    if slots > pool.slots:
        return Verdict(
            Reason.WAITING_FOR_CAPACITY,
            f"{pool.slots} of {pool.size} slots of {pool.name} can be used now, and {slots} are needed.{note}",
            "Starts when its other nodes are back; fewer processes start sooner.",
            blocker,
            waits=False,
        )
    gang = nodes > 1 and free > 0
    together = f" at once, on {nodes} nodes" if gang else ""
    return Verdict(
        Reason.WAITING_FOR_GANG if gang else Reason.WAITING_FOR_CAPACITY,
        f"{free} of {pool.slots} slots of {pool.name} are free, and {slots} are needed{together}.{note}",
        f"Starts when running jobs give back {_slots(lacking)} more.",
        blocker,
    )


def pool_disabled(pool: Pool) -> Verdict:
    return Verdict(
        Reason.CLUSTER_DOWN,
        f"{pool.name} takes no jobs now. {pool.note or 'An administrator has disabled it.'}",
        f"Starts when {pool.name} is enabled again.",
        Blocker("pool", pool.id, pool.name),
        waits=False,
    )


def budget(of: Budget, left: int, cost: int) -> Verdict:
    return Verdict(
        Reason.BUDGET_EXHAUSTED,
        f"{amount(cost, of.unit)} would be reserved of budget {of.name}, and {amount(max(0, left), of.unit)} are left.",
        f"Starts in the next period of {of.name} or when its amount is raised; a shorter time limit reserves less.",
        Blocker("budget", of.id, of.name, cost - left),
        waits=False,
    )


def turn(head: str, name: str, *, endless: bool, kept_for_limit: bool) -> Verdict:
    where = "of its team or group" if kept_for_limit else "for these slots"
    shorter = "a time limit" if endless else "a shorter time limit"
    return Verdict(
        Reason.WAITING_FOR_CAPACITY,
        f"It would fit, but an earlier job {where} is next in line, and this one could delay it.",
        f"Starts when that job has started; with {shorter} it may fit in before.",
        Blocker("turn", head, name),
    )


def amount(value: int, unit: str) -> str:
    """Slot-seconds as slot-hours, else micro-units of a currency."""
    if unit.replace("_", "-") in ("slot-seconds", "slot-hours", ""):
        return f"{value / 3600:.1f} slot-hours"
    return f"{value / 1e6:.2f} {unit}"


def _slots(count: int) -> str:
    return f"{count} slot{'' if count == 1 else 's'}"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
