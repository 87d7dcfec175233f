"""Says whether an admission was allowed, from the event log alone. Pure, and written without a look at the policy.

Kueue's meaning: a subtree has what its nodes are granted, less what its children keep to themselves; it may use that
and what it may borrow; beyond what it keeps to itself it takes from its parent.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Granted:
    nominal: int
    borrow: int | None
    lend: int | None


@dataclass(frozen=True)
class Node:
    """`grants` by accelerator. `running`, `slots`: limits of the subtree; None is none."""

    id: str
    parent: str | None
    grants: Mapping[str, Granted] = field(default_factory=dict)
    running: int | None = None
    slots: int | None = None


@dataclass(frozen=True)
class Held:
    job: str
    leaf: str
    pool: str
    accelerator: str
    slots: int


class Tree:
    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes = {node.id: node for node in nodes}

    def path(self, leaf: str) -> list[Node]:
        found = []
        at: str | None = leaf
        while at is not None:
            found.append(self.nodes[at])
            at = self.nodes[at].parent
        return found

    def governed(self, accelerator: str) -> bool:
        return any(accelerator in node.grants for node in self.nodes.values())

    def _children(self, node: Node) -> list[Node]:
        return [child for child in self.nodes.values() if child.parent == node.id]

    def _grant(self, node: Node, accelerator: str) -> Granted:
        return node.grants.get(accelerator, Granted(0, None, None))

    def whole(self, node: Node, accelerator: str) -> int:
        """What the subtree has and does not keep from its top."""
        lent = sum(self.whole(child, accelerator) - self.kept(child, accelerator) for child in self._children(node))
        return self._grant(node, accelerator).nominal + lent

    def kept(self, node: Node, accelerator: str) -> int:
        """What the subtree lends to nobody."""
        lend = self._grant(node, accelerator).lend
        return 0 if lend is None else max(0, self.whole(node, accelerator) - lend)

    def taken(self, node: Node, accelerator: str, held: list[Held]) -> int:
        """What the subtree uses of what `whole` counts."""
        own = sum(each.slots for each in held if each.leaf == node.id and each.accelerator == accelerator)
        below = (
            max(0, self.taken(child, accelerator, held) - self.kept(child, accelerator))
            for child in self._children(node)
        )
        return own + sum(below)

    def excesses(self, accelerator: str, held: list[Held]) -> dict[str, str]:
        """By node, how it is above what it may use."""
        found = {}
        for node in self.nodes.values():
            taken, whole = self.taken(node, accelerator, held), self.whole(node, accelerator)
            borrow = self._grant(node, accelerator).borrow
            most = whole if node.parent is None else None if borrow is None else whole + borrow
            if most is not None and taken > most:
                found[node.id] = f"uses {taken} of at most {most} {accelerator}"
        return found


def admission_problems(tree: Tree, pools: Mapping[str, int], before: list[Held], new: Held) -> list[str]:
    """What the admission of `new`, beside what was held before, broke. What was broken before and is touched by nobody
    is no fault of it: a quota may have been lowered."""
    held = [*before, new]
    problems = []
    in_pool = sum(each.slots for each in held if each.pool == new.pool)
    if in_pool > pools[new.pool]:
        problems.append(f"{new.job}: pool {new.pool} holds {in_pool} of {pools[new.pool]} slots")
    leaves: dict[str, set[str]] = {}
    for each in held:
        leaves.setdefault(each.leaf, {node.id for node in tree.path(each.leaf)})
    for node in tree.path(new.leaf):
        below = [each for each in held if node.id in leaves[each.leaf]]
        if node.running is not None and len(below) > node.running:
            problems.append(f"{new.job}: {node.id} runs {len(below)} of at most {node.running} jobs")
        slots = sum(each.slots for each in below)
        if node.slots is not None and slots > node.slots:
            problems.append(f"{new.job}: {node.id} holds {slots} of at most {node.slots} slots")
    if tree.governed(new.accelerator):
        earlier = {node.id: tree.taken(node, new.accelerator, before) for node in tree.nodes.values()}
        for node_id, excess in tree.excesses(new.accelerator, held).items():
            if tree.taken(tree.nodes[node_id], new.accelerator, held) > earlier[node_id]:
                problems.append(f"{new.job}: {node_id} {excess}")
    return problems
