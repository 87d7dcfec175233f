"""Hierarchical quotas: slots of an accelerator that each node of a tree has, uses, borrows and lends. Pure.

The arithmetic is that of Kueue's cohorts (its concepts "ClusterQueue" and "Cohort"; KEP 79): a node's subtree has its
own nominal slots and what its children lend. What a child does not lend is used first and is invisible to its parent.
One difference: a node's unlent slots are available to it even while the tree above exceeds its quota (as after an edit
that lowered it).

Nodes are numbered from 0 in the order of their ids; `path` of a node leads from it to its root.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

NO_LIMIT = 1 << 62


@dataclass(frozen=True, slots=True)
class CapacityGrant:
    """Slots of one accelerator granted to a node of the quota tree, with Kueue's meaning.

    `nominal`: its own; `borrow_limit`: how many idle slots of others its subtree may use; `lend_limit`: how many of its
    own others may use. None is no limit.
    """

    nominal: int = 0
    borrow_limit: int | None = None
    lend_limit: int | None = None


@dataclass(frozen=True, slots=True)
class CapacityNode:
    """A node of the quota tree; jobs belong to leaves. Limits apply to the subtree, None is no limit.

    `recent`, for leaves: average slots of each accelerator used recently, decayed by the half-life.
    """

    id: str
    name: str
    parent: str | None = None
    weight: float = 1.0
    grants: Mapping[str, CapacityGrant] = field(default_factory=dict)
    max_running_jobs: int | None = None
    max_slots: int | None = None
    recent: Mapping[str, float] = field(default_factory=dict)


_NOTHING = CapacityGrant()


class Constraint(NamedTuple):
    """The node of a path that lacks capacity. `kind`: "jobs" or "slots" (its limits), or "quota"."""

    kind: str
    node: int


class Quota:
    """Slots of one accelerator, by node: `local` are never lent, `most` is the maximum that the subtree may use."""

    __slots__ = ("local", "most", "nominal", "subtree")

    def __init__(self, nominal: list[int], subtree: list[int], local: list[int], most: list[int]) -> None:
        self.nominal = nominal
        self.subtree = subtree
        self.local = local
        self.most = most


class CapacityTree:
    """The tree, constant during a cycle. Raises ValueError for an unknown parent or a cycle of parents."""

    def __init__(self, nodes: Sequence[CapacityNode]) -> None:
        self.nodes = sorted(nodes, key=lambda node: node.id)
        self.index = {node.id: number for number, node in enumerate(self.nodes)}
        self.parents = [self._parent_of(node) for node in self.nodes]
        self.paths = [self._path_of(number) for number in range(len(self.nodes))]
        self.children: list[list[int]] = [[] for _ in self.nodes]
        for number, parent in enumerate(self.parents):
            if parent >= 0:
                self.children[parent].append(number)
        self.roots = [number for number, parent in enumerate(self.parents) if parent < 0]
        self.max_jobs = [_or_no_limit(node.max_running_jobs) for node in self.nodes]
        self.max_slots = [_or_no_limit(node.max_slots) for node in self.nodes]
        limited = [min(limits) < NO_LIMIT for limits in zip(self.max_jobs, self.max_slots, strict=True)]
        self.limited_paths = [tuple(number for number in path if limited[number]) for path in self.paths]
        self.has_limits = any(limited)
        granted = sorted({accelerator for node in self.nodes for accelerator in node.grants})
        self.quotas = {accelerator: self._quota(accelerator) for accelerator in granted}

    def _parent_of(self, node: CapacityNode) -> int:
        if node.parent is None:
            return -1
        if node.parent not in self.index:
            raise ValueError(f"{node.name}: its parent {node.parent!r} is not in the tree; name a node that is")
        return self.index[node.parent]

    def _path_of(self, number: int) -> tuple[int, ...]:
        path = [number]
        while self.parents[path[-1]] >= 0:
            path.append(self.parents[path[-1]])
            if len(path) > len(self.nodes):
                raise ValueError(f"{self.nodes[number].name} is above itself; give one of its ring another parent")
        return tuple(path)

    def _quota(self, accelerator: str) -> Quota:
        grants = [node.grants.get(accelerator, _NOTHING) for node in self.nodes]
        subtree = [grant.nominal for grant in grants]
        local, most = [0] * len(grants), [0] * len(grants)
        for number in sorted(range(len(grants)), key=lambda number: -len(self.paths[number])):
            grant = grants[number]
            if grant.lend_limit is not None:
                local[number] = max(0, subtree[number] - grant.lend_limit)
            parent = self.parents[number]
            borrowable = 0 if parent < 0 else _or_no_limit(grant.borrow_limit)
            most[number] = subtree[number] + borrowable
            if parent >= 0:
                subtree[parent] += subtree[number] - local[number]
        return Quota([grant.nominal for grant in grants], subtree, local, most)

    def below(self, ancestor: int, node: int) -> tuple[int, ...]:
        """Return the part of `node`'s path that is strictly below `ancestor`."""
        path = self.paths[node]
        return path[: path.index(ancestor)]

    def common_ancestor(self, first: int, second: int) -> int:
        """Return the lowest node on both paths, or -1."""
        path = self.paths[second]
        return next((number for number in self.paths[first] if number in path), -1)

    def capacity(self, leaf: int, accelerator: str) -> int:
        """Return the most slots that one job of this leaf could get in an empty tree."""
        most = min((self.max_slots[number] for number in self.limited_paths[leaf]), default=NO_LIMIT)
        if any(self.max_jobs[number] == 0 for number in self.limited_paths[leaf]):
            return 0
        return min(most, Usage(self).available(leaf, accelerator))


class Usage:
    """Usage of a tree at one moment, updated by `add` and `remove`."""

    __slots__ = ("jobs", "quota_slots", "slots", "tree")

    def __init__(self, tree: CapacityTree) -> None:
        self.tree = tree
        self.jobs = [0] * len(tree.nodes)
        self.slots = [0] * len(tree.nodes)
        self.quota_slots = {accelerator: [0] * len(tree.nodes) for accelerator in tree.quotas}

    def copy(self) -> "Usage":
        """Return an independent copy for the same tree."""
        same = Usage.__new__(Usage)
        same.tree = self.tree
        same.jobs = self.jobs.copy()
        same.slots = self.slots.copy()
        same.quota_slots = {accelerator: used.copy() for accelerator, used in self.quota_slots.items()}
        return same

    def add(self, leaf: int, accelerator: str, slots: int) -> None:
        """Add the slots of a job of this leaf."""
        for number in self.tree.limited_paths[leaf]:
            self.jobs[number] += 1
            self.slots[number] += slots
        quota = self.tree.quotas.get(accelerator)
        if quota is None:
            return
        used, local = self.quota_slots[accelerator], quota.local
        for number in self.tree.paths[leaf]:
            unlent = local[number] - used[number]
            used[number] += slots
            if unlent > 0:
                slots -= unlent
                if slots <= 0:
                    return

    def remove(self, leaf: int, accelerator: str, slots: int) -> None:
        """Remove the slots of a job of this leaf."""
        for number in self.tree.limited_paths[leaf]:
            self.jobs[number] -= 1
            self.slots[number] -= slots
        quota = self.tree.quotas.get(accelerator)
        if quota is None:
            return
        used, local = self.quota_slots[accelerator], quota.local
        for number in self.tree.paths[leaf]:
            above = used[number] - local[number]
            used[number] -= slots
            if above <= 0:
                return
            slots = min(slots, above)

    def first_constraint(self, leaf: int, accelerator: str, slots: int, top: int = -1) -> Constraint | None:
        """Return the first constraint that a job of this leaf violates, from the leaf up to `top`, or None."""
        tree = self.tree
        for number in tree.limited_paths[leaf]:
            if top >= 0 and len(tree.paths[number]) < len(tree.paths[top]):
                break
            if self.jobs[number] >= tree.max_jobs[number]:
                return Constraint("jobs", number)
            if self.slots[number] + slots > tree.max_slots[number]:
                return Constraint("slots", number)
        quota = tree.quotas.get(accelerator)
        if quota is None:
            return None
        used, local, most = self.quota_slots[accelerator], quota.local, quota.most
        for number in tree.paths[leaf]:
            unlent = local[number] - used[number]
            if slots <= unlent:
                return None
            if used[number] + slots > most[number]:
                return Constraint("quota", number)
            if unlent > 0:
                slots -= unlent
            if number == top:
                return None
        return None

    def available(self, leaf: int, accelerator: str) -> int:
        """Return how many more slots the quotas allow this leaf; never below 0."""
        quota = self.tree.quotas.get(accelerator)
        if quota is None:
            return NO_LIMIT
        used, above = self.quota_slots[accelerator], NO_LIMIT
        for number in reversed(self.tree.paths[leaf]):
            unlent = max(0, quota.local[number] - used[number])
            above = max(0, min(quota.most[number] - used[number], unlent + above))
        return above

    def borrowed(self, node: int, accelerator: str) -> int:
        """Return the slots that the subtree uses beyond its own quota."""
        quota = self.tree.quotas.get(accelerator)
        return 0 if quota is None else max(0, self.quota_slots[accelerator][node] - quota.subtree[node])

    def lent(self, accelerator: str) -> list[int]:
        """Return, by node, its slots that others use.

        Borrowed slots come from the parent's own slots first, then from the children with the most idle slots.
        """
        tree, quota = self.tree, self.tree.quotas[accelerator]
        used, lent = self.quota_slots[accelerator], [0] * len(self.tree.nodes)
        for node in sorted(range(len(tree.nodes)), key=lambda node: len(tree.paths[node])):
            children = tree.children[node]
            wanted = sum(self.borrowed(child, accelerator) for child in children)
            wanted += lent[node] - self.borrowed(node, accelerator) - quota.nominal[node]
            idle = {child: quota.subtree[child] - max(used[child], quota.local[child]) for child in children}
            for child in sorted(children, key=lambda child: -idle[child]):
                lent[child] = max(0, min(idle[child], wanted))
                wanted -= lent[child]
        return lent

    def is_within_nominal(self, leaf: int, accelerator: str, slots: int, below: int = -1) -> bool:
        """Return whether every node of the path, strictly below `below`, stays within its quota with `slots` more."""
        quota = self.tree.quotas.get(accelerator)
        if quota is None:
            return True
        used = self.quota_slots[accelerator]
        for number in self.tree.paths[leaf]:
            if number == below:
                return True
            if used[number] + slots > quota.subtree[number]:
                return False
            slots -= max(0, quota.local[number] - used[number])
            if slots <= 0:
                return True
        return True


def _or_no_limit(limit: int | None) -> int:
    return NO_LIMIT if limit is None else limit
