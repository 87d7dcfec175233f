"""The quota tree as values, and the documents that users write. Pure: no Django.

`Node` is a node, `NodeChange` a change of one node, `TreeDocument` a file with the complete tree.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from athanor.specs.v1 import Name
from trainer.contract.base import SpecModel

ROOT = "organisation"
LIMITS = (
    "max_running_jobs",
    "max_queued_jobs",
    "max_slots",
    "max_slots_per_job",
    "max_run_seconds",
    "max_storage_bytes",
)
LARGEST = 2**31 - 1
DEEPEST = 10

Count = Annotated[int, Field(ge=0, le=LARGEST)]
Accelerator = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=40)]
NAMED = Field(json_schema_extra={"additionalProperties": False})  # only names that match the pattern
TeamName = Annotated[str, Field(min_length=1, max_length=63)]
Weight = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]


class Grant(SpecModel):
    """Slots of one accelerator, with Kueue's meaning.

    `nominal`: the node's own; `borrow_limit`: how many idle slots of others its subtree may use; `lend_limit`: how many
    of its own others may use. None is no limit.
    """

    nominal: Count = 0
    borrow_limit: Count | None = None
    lend_limit: Count | None = None


class Limits(SpecModel):
    """Limits of a node and its subtree; None is no limit. `weight`: fair-share weight among its siblings."""

    weight: Weight = 1.0
    max_running_jobs: Count | None = None
    max_queued_jobs: Count | None = None
    max_slots: Count | None = None
    max_slots_per_job: Count | None = None
    max_run_seconds: Count | None = None
    max_storage_bytes: Annotated[int, Field(ge=0, le=2**62)] | None = None


class TeamDocument(Limits):
    grants: Annotated[dict[Accelerator, Grant], NAMED] = {}


class GroupDocument(TeamDocument):
    """A group with its subgroups and teams; omitted fields have their defaults."""

    groups: Annotated["dict[Name, GroupDocument]", NAMED] = {}
    teams: dict[TeamName, TeamDocument] = {}


class TreeDocument(SpecModel):
    """The complete tree. Omitted groups are deleted, omitted teams are unchanged."""

    organisation: GroupDocument


class NodeChange(Limits):
    """A change of the node with this id, path (research/vision; organisation is the root) or team name.

    Omitted fields are unchanged; a grant of null is removed. `parent` moves the node, `name` renames a group.
    """

    node: Annotated[str, Field(min_length=1, max_length=1000)]
    action: Literal["change", "create", "delete"] = "change"
    name: Name | None = None
    parent: Annotated[str, Field(min_length=1, max_length=1000)] | None = None
    grants: Annotated[dict[Accelerator, Grant | None], NAMED] = {}


class ChangesDocument(SpecModel):
    """Changes, applied in this order in one transaction."""

    changes: Annotated[list[NodeChange], Field(min_length=1, max_length=1000)]


class ProposalDocument(SpecModel):
    """Either changes of the current tree or a complete tree."""

    changes: Annotated[list[NodeChange], Field(max_length=1000)] = []
    organisation: GroupDocument | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the tree. `team`: name of the team of a leaf, empty for a group. `limits`: the limits that are set."""

    id: str
    name: str
    parent: str | None
    team: str = ""
    team_id: str = ""
    weight: float = 1.0
    limits: Mapping[str, int] = field(default_factory=dict)
    grants: Mapping[str, Grant] = field(default_factory=dict)


Tree = dict[str, Node]


def root_of(tree: Tree) -> Node:
    return next(node for node in tree.values() if node.parent is None)


def children_of(tree: Tree) -> dict[str, list[Node]]:
    """Return the children of each node by its id, sorted by name."""
    found: dict[str, list[Node]] = {node.id: [] for node in tree.values()}
    for node in sorted(tree.values(), key=lambda node: node.name):
        if node.parent is not None:
            found[node.parent].append(node)
    return found


def ancestors_of(tree: Tree, node_id: str) -> Iterator[Node]:
    """Yield the node, its parent, ... and the root."""
    at: str | None = node_id
    while at is not None:
        yield tree[at]
        at = tree[at].parent


def path_of(tree: Tree, node_id: str) -> str:
    """Return the path of a node, such as `research/vision`; for the root its name."""
    names = [node.name for node in ancestors_of(tree, node_id)]
    return "/".join(reversed(names[:-1])) or names[-1]


def paths(tree: Tree) -> dict[str, str]:
    """Return the ids of all nodes by path."""
    below, found = children_of(tree), {}
    top = root_of(tree)
    open_ = [(child, child.name) for child in below[top.id]]
    while open_:
        node, path = open_.pop()
        found[path] = node.id
        open_ += [(child, f"{path}/{child.name}") for child in below[node.id]]
    return {**found, top.name: top.id}


def nominals(tree: Tree) -> dict[tuple[str, str], int]:
    """Return the nominal slots of each subtree by (node id, accelerator), where it has a grant."""
    found: dict[tuple[str, str], int] = {}
    for node in tree.values():
        for accelerator, grant in node.grants.items():
            for above in ancestors_of(tree, node.id):
                key = (above.id, accelerator)
                found[key] = found.get(key, 0) + grant.nominal
    return found


def document_of(tree: Tree) -> TreeDocument:
    """Return the document of a tree; applying it changes nothing."""
    below = children_of(tree)

    def settings(node: Node) -> dict[str, object]:
        return {"weight": node.weight, **node.limits, "grants": dict(node.grants)}

    def group(node: Node) -> GroupDocument:
        return GroupDocument(
            **settings(node),
            groups={child.name: group(child) for child in below[node.id] if not child.team},
            teams={child.team: TeamDocument(**settings(child)) for child in below[node.id] if child.team},
        )

    return TreeDocument(organisation=group(root_of(tree)))
