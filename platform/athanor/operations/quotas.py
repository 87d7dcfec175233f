"""Quotas as a whole: what a submission is checked for, what is used of the tree now, and what a change would do."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from athanor.artifacts import usage
from athanor.core import tenancy
from athanor.core.errors import Conflict, FieldProblem
from athanor.jobs.services import Request
from athanor.quotas import limits, selectors
from athanor.quotas.changes import differences
from athanor.quotas.tree import Node, Tree, children_of, nominals, path_of, way_up
from athanor.scheduling import snapshot as pure
from athanor.scheduling.policy import decide
from athanor.scheduling.services import snapshot_now
from athanor.scheduling.tree import NO_LIMIT, Usage
from athanor.scheduling.tree import Tree as PureTree

MOST_TOLD = 100  # jobs of a kind


@dataclass(frozen=True)
class Share:
    """What a node's subtree has of one accelerator and what is used of it now. `nominal`: with what is below it.
    `available`: how many slots more it could use now, borrowed ones too (None: without a grant anywhere in the tree,
    only its pools bound it). `teams`: how many hold some."""

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
    """A node with what is used of it."""

    node: Node
    path: str
    depth: int
    shares: list[Share]
    used: selectors.Used


@dataclass(frozen=True)
class Over:
    """A node that uses more than it would be allowed. `what`: an accelerator or the name of a limit."""

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
    """What a change would do at this moment."""

    version: int
    differences: list[str]
    over: list[Over]
    preempted: list[TouchedJob]
    started: list[TouchedJob]
    not_started: list[TouchedJob]
    notes: list[str]


def check(request: Request) -> None:
    """Within the transaction that submits. Raises Invalid for what can never run, Conflict for what cannot be taken
    now."""
    path = selectors.path_of_team(request.team)
    limits.check(path, request.spec, request.pool)
    usage.check(path)
    limits.check_queue(path)


def check_plan(request: Request) -> list[FieldProblem]:
    """As `check` without submitting: what only now would be refused is a warning."""
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
    """Every node, parents before children. `used`: of nodes (selectors.used_of_nodes)."""
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
            sum(1 for _ in way_up(tree, node.id)) - 1,
            [share(node, accelerator) for accelerator in sorted(accelerators)],
            used[node.id],
        )
        for node in _from_the_top(tree)
    ]


def preview(wanted: Callable[[Tree], Tree]) -> Preview:
    """Takes no lock: by the time the change is made, other jobs may run."""
    version, before = selectors.version(), selectors.tree()
    after = wanted(before)
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
    """What is allowed and perhaps not meant."""
    there: dict[str, int] = {}
    for pool in pools:
        there[pool.accelerator] = there.get(pool.accelerator, 0) + pool.size * pool.enabled
    granted: dict[str, int] = {}
    for node in tree.values():
        for accelerator, grant in node.grants.items():
            granted[accelerator] = granted.get(accelerator, 0) + grant.nominal
    return [
        f"{slots} slots of {accelerator} are granted in all, and the pools have {there.get(accelerator, 0)}"
        for accelerator, slots in sorted(granted.items())
        if slots > there.get(accelerator, 0)
    ]


def consequences(snapshot: pure.Snapshot, after: Tree) -> tuple[list[TouchedJob], list[TouchedJob], list[TouchedJob]]:
    """What admission would decide otherwise with this tree: who is preempted, who starts, who no longer does. Pure."""
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
    return preempted[:MOST_TOLD], started[:MOST_TOLD], waiting[:MOST_TOLD]


def over_use(tree: Tree) -> list[Over]:
    """Which nodes of this tree use more than it allows, now."""
    used = selectors.used_of_nodes(tree)
    kept = usage.stored_bytes() if any("max_storage_bytes" in node.limits for node in tree.values()) else {}
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
            "max_storage_bytes": (_kept(tree, row.node.id, kept), "stored bytes"),
        }
        for name, (count, what) in now.items():
            limit = row.node.limits.get(name)
            if limit is not None and count > limit:
                found.append(_over(row.path, name, count, limit, what))
    return found


def _over(path: str, what: str, used: int, allowed: int, said: str) -> Over:
    return Over(path, what, used, allowed, f"{path} has {used} {said}, and {allowed} would be allowed ({what})")


def _kept(tree: Tree, node_id: str, kept: Mapping[str, int]) -> int:
    """Bytes of the subtree's teams. `kept`: by team."""
    below = (node for node in tree.values() if node.team_id in kept)
    return sum(kept[node.team_id] for node in below if any(above.id == node_id for above in way_up(tree, node.id)))


def seen_by(tree: Tree, team_ids: Iterable[str]) -> set[str]:
    """Ids of the nodes on the paths of these teams."""
    teams = set(team_ids)
    return {above.id for node in tree.values() if node.team_id in teams for above in way_up(tree, node.id)}


def pure_nodes(tree: Tree, recent: Mapping[str, Mapping[str, float]] | None = None) -> list[pure.QuotaNode]:
    """As admission knows them. `recent`: by the node's id (scheduling/snapshot.py)."""
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


def _from_the_top(tree: Tree) -> list[Node]:
    below = children_of(tree)
    found: list[Node] = []
    open_ = [node for node in tree.values() if node.parent is None]
    while open_:
        node = open_.pop()
        found.append(node)
        open_ += reversed(below[node.id])
    return found
