"""Rendezvous of an attempt's nodes: their addresses, and the ranks of each node's processes.

Each agent posts its address and waits. When all nodes have joined, the platform orders them by their distance in the
network and replies to each with its node rank. The request waits until then: a node does not ask repeatedly. A node
that leaves a round requests the next one; a spare node replaces a node that does not return. If there is none, and the
job can train on fewer nodes, the round is of those that are left, or in the first round of those that have come. A node
that joins later begins the next round.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field

from trainer.contract.base import WireModel
from trainer.contract.manifest import CheckpointId, CheckpointManifest
from trainer.contract.parallelism import MeshSizes

MAX_SWITCHES = 16
MAX_WAIT_SECONDS = 600
SPARE_JOIN_TIMEOUT = timedelta(seconds=10)
SHRINK_TIMEOUT = timedelta(seconds=15)
"""How long a round after the first waits for the nodes that the job asked for, once it could train without them: a node
that is well learns of the round by its next heartbeat, within 5 s. One that comes later makes the run grow."""
START_TIMEOUT = timedelta(seconds=120)
"""The same in the first round, after the newest join: nodes start at different times, for instance because they load an
image. Nodes that join within this time of each other cost no restart."""


class JoinRequest(WireModel):
    """Body of POST /rendezvous, sent by each node's agent until the reply is `placed` or `over`.

    `node_index`: the node's number in its backend. `name`: the backend's name of the machine. `address`: where other
    nodes reach it. `store_port`: where it serves the store of all ranks if it is node rank 0. `topology`: the switches
    above it, outermost first. `round` counts from 1; requesting a later round ends the current one for all nodes.
    `because`: why the node left the previous round. `wait_seconds`: how long the platform may hold the reply until the
    node's state changes. While it does, it sends spaces, which JSON ignores. Agents of earlier versions do not send it:
    they ask every few seconds. `leaves`: the node can run no ranks any more, so a spare node takes its place in round
    `round`, or the round is of fewer nodes. The reply is `spare` until the attempt is over, and `over` if the other
    nodes are too few.
    """

    node_index: Annotated[int, Field(ge=0, lt=100_000)]
    name: Annotated[str, Field(max_length=255)]
    address: Annotated[str, Field(min_length=1, max_length=255)]
    store_port: Annotated[int, Field(ge=1, le=65535)]
    topology: Annotated[list[Annotated[str, Field(max_length=100)]], Field(max_length=MAX_SWITCHES)] = []
    round: Annotated[int, Field(ge=1, lt=1_000_000)] = 1
    because: Annotated[str, Field(max_length=2000)] = ""
    wait_seconds: Annotated[int, Field(ge=0, le=MAX_WAIT_SECONDS)] = 0
    leaves: bool = False


class JoinReply(WireModel):
    """Reply to a join.

    `state`: `gathering` (ask again), `placed` (start with these ranks and this store), `spare` (ask again: a later
    round may need the node) or `over` (the attempt has ended on another node: end too). `missing`: the number of nodes
    that have not joined yet. `nodes`: all placed nodes, by node rank, for node rank 0. `resume_from`: the checkpoint
    that all ranks of this round resume from; one that is registered later is for the next round. A request without
    `wait_seconds` gets `nodes` on every node, and the manifest as `resume` in place of `resume_from`. `spares`: the
    number of nodes that joined the round and have no ranks in it. `num_nodes`: the number of nodes with ranks; 0 of a
    platform of an earlier version, for as many as the job asked for. `grows_from`: if the round was begun because the
    run can continue on more nodes, the number of nodes with ranks before it, else 0.
    """

    state: Literal["gathering", "placed", "spare", "over"]
    round: int
    missing: int = 0
    node_rank: int = -1
    store_host: str = ""
    store_port: int = 0
    nodes: list[JoinRequest] = []
    resume: CheckpointManifest | None = None
    resume_from: CheckpointId | None = None
    spares: int = 0
    num_nodes: int = 0
    grows_from: int = 0


def count_missing(
    round_number: int, joined: int, expected: int, needed: int, fewest: int, waited: timedelta | None
) -> int:
    """Return how many nodes a round waits for; 0: it closes now.

    `joined`: the nodes in it. `expected`: those of the attempt, spare ones included, without those that have left for
    good. `needed`: as many as the job asked for. `fewest`: with how many it may close. `waited`: the time since
    `fewest` had joined, or `needed` if they have, and in the first round since the newest join; None before.
    """
    wanted = min(needed, expected)
    if waited is None or joined < fewest:
        return max(wanted, fewest) - joined
    if joined < wanted:
        timeout = SHRINK_TIMEOUT if round_number > 1 else START_TIMEOUT
        return 0 if waited >= timeout else wanted - joined
    return 0 if waited >= SPARE_JOIN_TIMEOUT else max(0, expected - joined)


def choose_num_nodes(joined: int, needed: int, fewest: int, fits: Callable[[int], bool]) -> int:
    """Return on how many of the joined nodes to train: `needed`, or else the largest number that `fits` the job's mesh.

    `fewest` fits. The remaining nodes wait as spare ones.
    """
    if joined >= needed:
        return needed
    return next((count for count in range(joined, fewest, -1) if fits(count)), fewest)


def arrange(joins: Sequence[JoinRequest], nodes: int, stages: int = 1) -> list[JoinRequest]:
    """Return the participating nodes by node rank: the `nodes` of the lowest index.

    They are ordered by the switches above them, so that neighbours in rank are neighbours in the network. In a pipeline
    of `stages` that each span complete nodes, the nodes that pass activations to each other are neighbours instead,
    which are `nodes / stages` ranks apart: replicas of a stage communicate once per step, stages with each micro-batch.
    """
    taking_part = sorted(joins, key=lambda join: join.node_index)[:nodes]
    near = sorted(taking_part, key=lambda join: (join.topology, join.name, join.node_index))
    if stages <= 1 or nodes % stages:
        return near
    columns = nodes // stages
    return [near[column * stages + stage] for stage in range(stages) for column in range(columns)]


def stages_of_nodes(sizes: MeshSizes, processes_per_node: int) -> int:
    """Return the number of pipeline stages if each spans complete nodes, 1 if a node contains several stages."""
    ranks = sizes.world // sizes.pipeline
    return sizes.pipeline if ranks >= processes_per_node and ranks % processes_per_node == 0 else 1


def hops(first: JoinRequest, second: JoinRequest) -> int:
    """Return the number of switches between two nodes: 0 on one node, 1 below one switch, 3 through a second level."""
    if first.name == second.name:
        return 0
    common = 0
    for one, other in zip(first.topology, second.topology, strict=False):
        if one != other:
            break
        common += 1
    return 2 * (max(len(first.topology), len(second.topology), 1) - common) + 1


def spans(sizes: MeshSizes, processes_per_node: int, placed: Sequence[JoinRequest]) -> dict[str, tuple[int, int]]:
    """Return for each axis of more than one rank the maximum number of nodes that one of its groups spans, and the
    maximum number of hops between two neighbours in a group."""
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
