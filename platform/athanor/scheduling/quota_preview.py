"""Preview a change of the quota tree: who exceeds it, and which jobs it would preempt or start now."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from athanor.artifacts import usage as stored_usage
from athanor.core import tenancy
from athanor.quotas import selectors
from athanor.quotas.changes import differences
from athanor.quotas.tree import Tree, ancestors_of
from athanor.quotas.usage import capacity_nodes, usage_of_nodes
from athanor.scheduling.policy.cycle import decide
from athanor.scheduling.policy.snapshot import Holding, Pool, Snapshot, Waiting
from athanor.scheduling.services import snapshot_now

MAX_JOBS = 100  # of each kind of effect


@dataclass(frozen=True)
class Overuse:
    """A node that exceeds a proposed limit. `what`: an accelerator or the name of a limit."""

    node: str
    what: str
    used: int
    allowed: int
    detail: str


@dataclass(frozen=True)
class AffectedJob:
    """A job that a change would preempt, start or keep waiting."""

    id: str
    team: str
    slots: int
    accelerator: str
    why: str = ""


@dataclass(frozen=True)
class Preview:
    """The effect that a change would have now."""

    version: int
    differences: list[str]
    over: list[Overuse]
    preempted: list[AffectedJob]
    started: list[AffectedJob]
    not_started: list[AffectedJob]
    notes: list[str]


def preview(change: Callable[[Tree], Tree]) -> Preview:
    """Return the effect of a change. Takes no lock: other jobs may start before the change is applied."""
    version, before = selectors.version(), selectors.tree()
    after = change(before)
    with tenancy.unrestricted():
        snapshot = snapshot_now()
    return Preview(
        version,
        differences(before, after),
        find_overuse(after),
        *affected_jobs(snapshot, after),
        warnings_of(after, snapshot.pools),
    )


def warnings_of(tree: Tree, pools: Iterable[Pool]) -> list[str]:
    """Return warnings about valid but probably unintended grants."""
    there: dict[str, int] = {}
    for pool in pools:
        there[pool.accelerator] = there.get(pool.accelerator, 0) + (pool.size - pool.spare) * pool.enabled
    granted: dict[str, int] = {}
    for node in tree.values():
        for accelerator, grant in node.grants.items():
            granted[accelerator] = granted.get(accelerator, 0) + grant.nominal
    return [
        f"{slots} slots of {accelerator} are granted in total, and jobs may hold {there.get(accelerator, 0)}"
        for accelerator, slots in sorted(granted.items())
        if slots > there.get(accelerator, 0)
    ]


def affected_jobs(snapshot: Snapshot, after: Tree) -> tuple[list[AffectedJob], list[AffectedJob], list[AffectedJob]]:
    """Return which jobs would be preempted, would start, or would no longer start with this tree. Pure."""
    recent = {node.id: node.recent for node in snapshot.nodes}
    now = {each.job_id: each for each in decide(snapshot)}
    then = {each.job_id: each for each in decide(replace(snapshot, nodes=capacity_nodes(after, recent)))}
    jobs: dict[str, Holding | Waiting] = {job.job_id: job for job in snapshot.holdings}
    jobs |= {job.job_id: job for job in snapshot.waiting}
    accelerators = {pool.id: pool.accelerator for pool in snapshot.pools}

    def affected(job_id: str, why: str = "") -> AffectedJob:
        job = jobs[job_id]
        return AffectedJob(job_id, after[job.node].name, job.slots, accelerators[job.pool], why)

    spared = {victim for each in now.values() for victim in each.victims}
    preempted = [
        affected(victim, f"for {each.job_id} of {after[jobs[each.job_id].node].name}")
        for each in then.values()
        for victim in each.victims
        if victim not in spared
    ]
    started = [affected(each.job_id) for each in then.values() if each.admitted and not now[each.job_id].admitted]
    waiting = [
        affected(each.job_id, each.detail) for each in then.values() if now[each.job_id].admitted and not each.admitted
    ]
    return preempted[:MAX_JOBS], started[:MAX_JOBS], waiting[:MAX_JOBS]


def find_overuse(tree: Tree) -> list[Overuse]:
    """Return the nodes whose current usage exceeds this tree."""
    used = selectors.used_of_nodes(tree)
    stored = stored_usage.stored_bytes() if any("max_storage_bytes" in node.limits for node in tree.values()) else {}
    found = []
    for row in usage_of_nodes(tree, used):
        for share in row.shares:
            grant = row.node.grants.get(share.accelerator)
            borrows = grant.borrow_limit if grant else None
            allowed = share.nominal + (borrows or 0)
            unlimited = borrows is None and row.node.parent is not None
            if share.governed and share.used > allowed and not unlimited:
                found.append(_overuse(row.path, share.accelerator, share.used, allowed, "used slots"))
        now = {
            "max_running_jobs": (row.used.running_jobs, "running jobs"),
            "max_queued_jobs": (row.used.queued_jobs, "waiting jobs"),
            "max_slots": (row.used.slots_total, "used slots"),
            "max_storage_bytes": (_stored_below(tree, row.node.id, stored), "stored bytes"),
        }
        for name, (count, what) in now.items():
            limit = row.node.limits.get(name)
            if limit is not None and count > limit:
                found.append(_overuse(row.path, name, count, limit, what))
    return found


def _overuse(path: str, what: str, used: int, allowed: int, label: str) -> Overuse:
    return Overuse(path, what, used, allowed, f"{path} has {used} {label}, and {allowed} would be allowed ({what})")


def _stored_below(tree: Tree, node_id: str, stored: Mapping[str, int]) -> int:
    """Return the bytes stored by the subtree's teams. `stored`: by team."""
    below = (node for node in tree.values() if node.team_id in stored)
    inside = (node for node in below if any(above.id == node_id for above in ancestors_of(tree, node.id)))
    return sum(stored[node.team_id] for node in inside)
