"""How the agents of an attempt find each other, and which rank each node's processes get.

Each agent says where it is and waits. When all are there the platform arranges them by what lies between them, and
answers each with its place. A node that leaves a round requests the next one; a spare node takes the place of one that
does not come back.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from trainer.contract.base import WireModel
from trainer.contract.manifest import CheckpointManifest
from trainer.contract.parallelism import MeshSizes

MAX_SWITCHES = 16


class Join(WireModel):
    """POST /rendezvous, by each node's agent, until the answer is not `gathering`. `node_index` is what its backend
    counted it as; `name` what the backend calls the machine, `address` what other nodes reach it by. On `store_port` it
    listens as the store of all ranks, should it be asked to. `topology`: the switches above it, outermost first.
    `round` counts from 1; to ask for a later round than the present one ends that for all. `because`: why it left."""

    node_index: Annotated[int, Field(ge=0, lt=100_000)]
    name: Annotated[str, Field(max_length=255)]
    address: Annotated[str, Field(min_length=1, max_length=255)]
    store_port: Annotated[int, Field(ge=1, le=65535)]
    topology: Annotated[list[Annotated[str, Field(max_length=100)]], Field(max_length=MAX_SWITCHES)] = []
    round: Annotated[int, Field(ge=1, lt=1_000_000)] = 1
    because: Annotated[str, Field(max_length=2000)] = ""


class Place(WireModel):
    """The answer. `gathering`: ask again. `placed`: these ranks, that store. `spare`: ask again, for a later round may
    need it. `over`: the attempt has ended on another node, end too. `nodes`: all that were placed, by node rank.
    `missing`: how many nodes have not come yet. `resume`: the checkpoint from which all ranks of this round go on; one
    that is registered later is for the next round."""

    state: Literal["gathering", "placed", "spare", "over"]
    round: int
    missing: int = 0
    node_rank: int = -1
    store_host: str = ""
    store_port: int = 0
    nodes: list[Join] = []
    resume: CheckpointManifest | None = None


def arrange(joins: Sequence[Join], nodes: int, stages: int = 1) -> list[Join]:
    """Return the `nodes` that take part, by node rank.

    Those of the lowest index take part. They are ordered by the switches above them, so that neighbours in rank are
    neighbours in the network. Where a pipeline has `stages` of whole nodes each, the nodes that pass activations to
    each other, which lie `nodes / stages` ranks apart, are the neighbours instead: a stage's replicas meet once a step,
    its pipeline with every micro-batch.
    """
    taking_part = sorted(joins, key=lambda join: join.node_index)[:nodes]
    near = sorted(taking_part, key=lambda join: (join.topology, join.name, join.node_index))
    if stages <= 1 or nodes % stages:
        return near
    columns = nodes // stages
    return [near[column * stages + stage] for stage in range(stages) for column in range(columns)]


def stages_of_nodes(sizes: MeshSizes, processes_per_node: int) -> int:
    """Into how many stages of whole nodes the pipeline falls; 1 where a node holds more than one stage."""
    ranks = sizes.world // sizes.pipeline
    return sizes.pipeline if ranks >= processes_per_node and ranks % processes_per_node == 0 else 1


def hops(first: Join, second: Join) -> int:
    """Switches that lie between two nodes: 0 for one node, 1 below one switch, 3 where another joins their two."""
    if first.name == second.name:
        return 0
    common = 0
    for one, other in zip(first.topology, second.topology, strict=False):
        if one != other:
            break
        common += 1
    return 2 * (max(len(first.topology), len(second.topology), 1) - common) + 1


def spans(sizes: MeshSizes, processes_per_node: int, placed: Sequence[Join]) -> dict[str, tuple[int, int]]:
    """For each axis of more than one rank: over how many nodes its widest group lies, and the most hops between two
    neighbours in one of its groups."""
    found: dict[str, tuple[int, int]] = {}
    stride = sizes.world
    for axis, size in sizes.named.items():
        stride //= size
        if size == 1:
            continue
        widest, farthest = 1, 0
        for first in range(sizes.world):
            if first // stride % size:
                continue
            group = [(first + stride * number) // processes_per_node for number in range(size)]
            widest = max(widest, len(set(group)))
            pairs = zip(group, group[1:], strict=False)
            farthest = max([farthest, *(hops(placed[one], placed[other]) for one, other in pairs)])
        found[axis] = (widest, farthest)
    return found
