"""Current usage of every node of the quota tree: slots used, borrowed and lent, and running and queued jobs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from athanor.quotas import selectors
from athanor.quotas.capacity import NO_LIMIT, CapacityGrant, CapacityNode, CapacityTree, Usage
from athanor.quotas.tree import Node, Tree, ancestors_of, children_of, nominals, path_of


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
class NodeUsage:
    """A node with its usage."""

    node: Node
    path: str
    depth: int
    shares: list[Share]
    used: selectors.Used


def usage_of_nodes(tree: Tree, used: Mapping[str, selectors.Used]) -> list[NodeUsage]:
    """Return every node with its usage, parents before children. `used`: from selectors.used_of_nodes."""
    capacity = CapacityTree(capacity_nodes(tree))
    now = Usage(capacity)
    accelerators = {*capacity.quotas}
    for node in tree.values():
        if node.team:
            for accelerator, slots in used[node.id].slots.items():
                now.add(capacity.index[node.id], accelerator, slots)
                accelerators.add(accelerator)
    lent = {accelerator: now.lent(accelerator) for accelerator in capacity.quotas}
    own = nominals(tree)

    def share(node: Node, accelerator: str) -> Share:
        at, governed = capacity.index[node.id], accelerator in capacity.quotas
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
        NodeUsage(
            node,
            path_of(tree, node.id),
            sum(1 for _ in ancestors_of(tree, node.id)) - 1,
            [share(node, accelerator) for accelerator in sorted(accelerators)],
            used[node.id],
        )
        for node in _parents_first(tree)
    ]


def nodes_visible_to(tree: Tree, team_ids: Iterable[str]) -> set[str]:
    """Return the ids of the nodes on the paths of these teams."""
    teams = set(team_ids)
    return {above.id for node in tree.values() if node.team_id in teams for above in ancestors_of(tree, node.id)}


def capacity_nodes(tree: Tree, recent: Mapping[str, Mapping[str, float]] | None = None) -> list[CapacityNode]:
    """Return the nodes as admission input. `recent`: by node id (CapacityNode)."""
    return [
        CapacityNode(
            id=node.id,
            name=node.name,
            parent=node.parent,
            weight=node.weight,
            grants={
                accelerator: CapacityGrant(grant.nominal, grant.borrow_limit, grant.lend_limit)
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
