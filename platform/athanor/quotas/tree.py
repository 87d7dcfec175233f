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
    "idle_warning_seconds",
    "idle_pause_seconds",
)
MAX_COUNT = 2**31 - 1
MAX_DEPTH = 10
MIN_IDLE_SECONDS = 60

Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
IdleSeconds = Annotated[int, Field(ge=MIN_IDLE_SECONDS, le=MAX_COUNT)]
Accelerator = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=40)]
NAMED = Field(json_schema_extra={"additionalProperties": False})  # only names that match the pattern
TeamName = Annotated[str, Field(min_length=1, max_length=63)]
Weight = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]


class Grant(SpecModel):
    """Slots of one accelerator, with the meaning that Kueue gives to these names."""

    nominal: Count = 0
    """Slots of the node's own."""
    borrow_limit: Count | None = None
    """Maximum number of slots beyond its own that the subtree may use of what others leave idle. Null: no limit."""
    lend_limit: Count | None = None
    """Maximum number of slots of its own that others may use. Null: all."""


class Limits(SpecModel):
    """Limits of a node. They apply to its subtree."""

    weight: Weight = 1.0
    """Weight against its siblings in fair-share ranking."""
    max_running_jobs: Count | None = None
    """Maximum number of jobs of the subtree that may hold slots at the same time. Null: no limit."""
    max_queued_jobs: Count | None = None
    """Maximum number of jobs of the subtree that may wait at the same time. Null: no limit."""
    max_slots: Count | None = None
    """Maximum number of slots that jobs of the subtree may hold at the same time. Null: no limit."""
    max_slots_per_job: Count | None = None
    """Maximum number of slots of one job. Null: no limit."""
    max_run_seconds: Count | None = None
    """Maximum `time_limit_seconds` of a job. Null: no limit."""
    max_storage_bytes: Annotated[int, Field(ge=0, le=2**62)] | None = None
    """Maximum number of bytes that the subtree may store before new data and jobs are refused. Null: no limit."""
    idle_warning_seconds: IdleSeconds | None = None
    """Time without progress after which a running job of the subtree gets the event `job.idle`, in seconds. Null: no
    warning."""
    idle_pause_seconds: IdleSeconds | None = None
    """Time without progress after which a running job of the subtree is paused at a checkpoint, in seconds. Null: it is
    not paused."""


class TeamDocument(Limits):
    """A team's leaf. Fields that are left out have their default."""

    grants: Annotated[dict[Accelerator, Grant], NAMED] = {}
    """Slots of its own, by accelerator; `cpu` is one too."""


class GroupDocument(TeamDocument):
    """A group with everything below it. Fields that are left out have their default."""

    groups: Annotated["dict[Name, GroupDocument]", NAMED] = {}
    """Groups directly below it, by name."""
    teams: dict[TeamName, TeamDocument] = {}
    """Teams directly below it, by name."""


class TreeDocument(SpecModel):
    """The complete tree. A group that is left out is removed, a team that is left out stays as it is."""

    organisation: GroupDocument
    """The root of the tree."""


class NodeChange(Limits):
    """A change of one node. Fields that are left out stay as they are."""

    node: Annotated[str, Field(min_length=1, max_length=1000)]
    """The node: its id, its path (`research/vision`; `organisation` is the root), or the name of a team. To create a
    group: its path, or its name with `parent`."""
    action: Literal["change", "create", "delete"] = "change"
    """What to do with it. Only groups are created and deleted."""
    name: Name | None = None
    """New name of a group."""
    parent: Annotated[str, Field(min_length=1, max_length=1000)] | None = None
    """Node to move it below, or to create the group below, named like `node`."""
    grants: Annotated[dict[Accelerator, Grant | None], NAMED] = {}
    """Slots of its own, by accelerator. Accelerators that are left out stay; null removes a grant."""


class ChangesDocument(SpecModel):
    """Changes of the present tree."""

    changes: Annotated[list[NodeChange], Field(min_length=1, max_length=1000)]
    """Changes, applied in order, all of them or none."""


class ProposalDocument(SpecModel):
    """Either changes of the present tree or a complete one."""

    changes: Annotated[list[NodeChange], Field(max_length=1000)] = []
    """Changes of the present tree, applied in order. Give this or `organisation`."""
    organisation: GroupDocument | None = None
    """Root of a complete tree. Give this or `changes`."""


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
    """Return the node without a parent."""
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
