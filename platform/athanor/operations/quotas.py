"""Quota checks of submissions, current usage of the tree, and previews of changes."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from athanor.artifacts import usage
from athanor.core import tenancy
from athanor.core.errors import Conflict, FieldProblem
from athanor.jobs.services import Request
from athanor.quotas import limits, selectors
from athanor.quotas.changes import differences
from athanor.quotas.tree import Node, Tree, ancestors_of, children_of, nominals, path_of
from athanor.scheduling import snapshot as pure
from athanor.scheduling.policy import decide
from athanor.scheduling.services import snapshot_now
from athanor.scheduling.tree import NO_LIMIT, Usage
from athanor.scheduling.tree import Tree as PureTree

MAX_JOBS = 100  # per kind of effect


@dataclass(frozen=True)
class Share:
    """Slots and usage of one accelerator in a node's subtree.

    `nominal`: including the nodes below. `available`: additional slots it could use now, including borrowed ones (None:
    no grant in the tree, only the pools limit it). `teams`: number of teams that hold some.
    """

    accelerator: str
    governed: bool
    nominal: int
    used: int
    borrowed: int
    lent: int
    available: int | None
    teams: int


@dataclass(frozen=True)
class Shown:
    """A node with its usage."""

    node: Node
    path: str
    depth: int
    shares: list[Share]
    used: selectors.Used


@dataclass(frozen=True)
class Over:
    """A node that exceeds a proposed limit. `what`: an accelerator or the name of a limit."""

    node: str
    what: str
    used: int
    allowed: int
    detail: str


@dataclass(frozen=True)
class TouchedJob:
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
    over: list[Over]
    preempted: list[TouchedJob]
    started: list[TouchedJob]
    not_started: list[TouchedJob]
    notes: list[str]


def check(request: Request) -> None:
    """Check a submission, within its transaction.

    Raises Invalid for a job that can never run, Conflict for one that cannot be accepted now.
    """
    path = selectors.path_of_team(request.team)
    limits.check(path, request.spec, request.pool)
    usage.check(path)
    limits.check_queue(path)


def check_plan(request: Request) -> list[FieldProblem]:
    """Check a plan like a submission, but return conflicts as warnings."""
    path = selectors.path_of_team(request.team)
    limits.check(path, request.spec, request.pool)
    warnings = []
    for ask in (usage.check, partial(limits.check_queue, exactly=False)):
        try:
            ask(path)
        except Conflict as refusal:
            warnings.append(FieldProblem("/", refusal.code, f"{refusal.message}; {refusal.remedy}"))
    return warnings


def shown(tree: Tree, used: Mapping[str, selectors.Used]) -> list[Shown]:
    """Return every node with its usage, parents before children. `used`: from selectors.used_of_nodes."""
    pure_tree = PureTree(pure_nodes(tree))
    now = Usage(pure_tree)
    accelerators = {*pure_tree.quotas}
    for node in tree.values():
        if node.team:
            for accelerator, slots in used[node.id].slots.items():
                now.add(pure_tree.index[node.id], accelerator, slots)
                accelerators.add(accelerator)
    lent = {accelerator: now.lent(accelerator) for accelerator in pure_tree.quotas}
    own = nominals(tree)

    def share(node: Node, accelerator: str) -> Share:
        at, governed = pure_tree.index[node.id], accelerator in pure_tree.quotas
        free = now.available(at, accelerator)
        return Share(
            accelerator=accelerator,
            governed=governed,
            nominal=own.get((node.id, accelerator), 0),
            used=used[node.id].slots.get(accelerator, 0),
            borrowed=now.borrowed(at, accelerator),
            lent=lent[accelerator][at] if governed else 0,
            available=free if governed and free < NO_LIMIT else None,
            teams=used[node.id].teams.get(accelerator, 0),
        )

    return [
        Shown(
            node,
            path_of(tree, node.id),
            sum(1 for _ in ancestors_of(tree, node.id)) - 1,
            [share(node, accelerator) for accelerator in sorted(accelerators)],
            used[node.id],
        )
        for node in _parents_first(tree)
    ]


def preview(change: Callable[[Tree], Tree]) -> Preview:
    """Return the effect of a change. Takes no lock: other jobs may start before the change is applied."""
    version, before = selectors.version(), selectors.tree()
    after = change(before)
    with tenancy.unrestricted():
        snapshot = snapshot_now()
    return Preview(
        version,
        differences(before, after),
        over_use(after),
        *consequences(snapshot, after),
        notes(after, snapshot.pools),
    )


def notes(tree: Tree, pools: Iterable[pure.Pool]) -> list[str]:
    """Return warnings about valid but probably unintended grants."""
    there: dict[str, int] = {}
    for pool in pools:
        there[pool.accelerator] = there.get(pool.accelerator, 0) + pool.size * pool.enabled
    granted: dict[str, int] = {}
    for node in tree.values():
        for accelerator, grant in node.grants.items():
            granted[accelerator] = granted.get(accelerator, 0) + grant.nominal
    return [
        f"{slots} slots of {accelerator} are granted in total, and the pools have {there.get(accelerator, 0)}"
        for accelerator, slots in sorted(granted.items())
        if slots > there.get(accelerator, 0)
    ]


def consequences(snapshot: pure.Snapshot, after: Tree) -> tuple[list[TouchedJob], list[TouchedJob], list[TouchedJob]]:
    """Return which jobs would be preempted, would start, or would no longer start with this tree. Pure."""
    recent = {node.id: node.recent for node in snapshot.nodes}
    now = {each.job_id: each for each in decide(snapshot)}
    then = {each.job_id: each for each in decide(replace(snapshot, nodes=pure_nodes(after, recent)))}
    jobs: dict[str, pure.Holding | pure.Waiting] = {job.job_id: job for job in snapshot.holdings}
    jobs |= {job.job_id: job for job in snapshot.waiting}
    accelerators = {pool.id: pool.accelerator for pool in snapshot.pools}

    def touched(job_id: str, why: str = "") -> TouchedJob:
        job = jobs[job_id]
        return TouchedJob(job_id, after[job.node].name, job.slots, accelerators[job.pool], why)

    spared = {victim for each in now.values() for victim in each.victims}
    preempted = [
        touched(victim, f"for {each.job_id} of {after[jobs[each.job_id].node].name}")
        for each in then.values()
        for victim in each.victims
        if victim not in spared
    ]
    started = [touched(each.job_id) for each in then.values() if each.admitted and not now[each.job_id].admitted]
    waiting = [
        touched(each.job_id, each.detail) for each in then.values() if now[each.job_id].admitted and not each.admitted
    ]
    return preempted[:MAX_JOBS], started[:MAX_JOBS], waiting[:MAX_JOBS]


def over_use(tree: Tree) -> list[Over]:
    """Return the nodes whose current usage exceeds this tree."""
    used = selectors.used_of_nodes(tree)
    stored = usage.stored_bytes() if any("max_storage_bytes" in node.limits for node in tree.values()) else {}
    found = []
    for row in shown(tree, used):
        for share in row.shares:
            grant = row.node.grants.get(share.accelerator)
            borrows = grant.borrow_limit if grant else None
            allowed = share.nominal + (borrows or 0)
            unlimited = borrows is None and row.node.parent is not None
            if share.governed and share.used > allowed and not unlimited:
                found.append(_over(row.path, share.accelerator, share.used, allowed, "used slots"))
        now = {
            "max_running_jobs": (row.used.running_jobs, "running jobs"),
            "max_queued_jobs": (row.used.queued_jobs, "waiting jobs"),
            "max_slots": (row.used.slots_total, "used slots"),
            "max_storage_bytes": (_stored_below(tree, row.node.id, stored), "stored bytes"),
        }
        for name, (count, what) in now.items():
            limit = row.node.limits.get(name)
            if limit is not None and count > limit:
                found.append(_over(row.path, name, count, limit, what))
    return found


def _over(path: str, what: str, used: int, allowed: int, label: str) -> Over:
    return Over(path, what, used, allowed, f"{path} has {used} {label}, and {allowed} would be allowed ({what})")


def _stored_below(tree: Tree, node_id: str, stored: Mapping[str, int]) -> int:
    """Return the bytes stored by the subtree's teams. `stored`: by team."""
    below = (node for node in tree.values() if node.team_id in stored)
    inside = (node for node in below if any(above.id == node_id for above in ancestors_of(tree, node.id)))
    return sum(stored[node.team_id] for node in inside)


def seen_by(tree: Tree, team_ids: Iterable[str]) -> set[str]:
    """Return the ids of the nodes on the paths of these teams."""
    teams = set(team_ids)
    return {above.id for node in tree.values() if node.team_id in teams for above in ancestors_of(tree, node.id)}


def pure_nodes(tree: Tree, recent: Mapping[str, Mapping[str, float]] | None = None) -> list[pure.QuotaNode]:
    """Return the nodes as admission input. `recent`: by node id (scheduling/snapshot.py)."""
    return [
        pure.QuotaNode(
            id=node.id,
            name=node.name,
            parent=node.parent,
            weight=node.weight,
            grants={
                accelerator: pure.Grant(grant.nominal, grant.borrow_limit, grant.lend_limit)
                for accelerator, grant in node.grants.items()
            },
            max_running_jobs=node.limits.get("max_running_jobs"),
            max_slots=node.limits.get("max_slots"),
            recent=(recent or {}).get(node.id, {}),
        )
        for node in tree.values()
    ]


def _parents_first(tree: Tree) -> list[Node]:
    below = children_of(tree)
    found: list[Node] = []
    open_ = [node for node in tree.values() if node.parent is None]
    while open_:
        node = open_.pop()
        found.append(node)
        open_ += reversed(below[node.id])
    return found
