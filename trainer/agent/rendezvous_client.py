"""The node's side of the rendezvous of multi-node runs: it reports its address and waits for its ranks."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from trainer.client.platform import Platform
from trainer.contract.manifest import CheckpointManifest
from trainer.contract.node_rendezvous import JoinReply, JoinRequest, hops, spans
from trainer.contract.parallelism import MeshSizes

logger = logging.getLogger(__name__)

REJOIN_PATIENCE_SECONDS = 120.0  # in rounds after the first; the first waits until all nodes join or the job ends
WAIT_SECONDS = 180  # the platform holds a reply for at most so long
_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.2, 3.0


@dataclass(frozen=True)
class NodeIdentity:
    """The node as its backend reports it to the agent; the defaults suit single-node runs.

    `address`: by which other nodes reach it. `topology`: the switches above it, outermost first.
    """

    index: int = 0
    name: str = ""
    address: str = "127.0.0.1"
    topology: list[str] = field(default_factory=list)


class RendezvousClient:
    """Joins rendezvous rounds. `reply`: the platform's newest, None before the first. `requested_round`: the newest
    round that any node has requested, and `grows`, whether it was begun to continue on more nodes, as the platform
    reports them in heartbeats."""

    def __init__(self, platform: Platform, identity: NodeIdentity, is_ended: Callable[[], bool]) -> None:
        self._platform, self._identity, self._is_ended = platform, identity, is_ended
        self._wait = threading.Event().wait
        self.reply: JoinReply | None = None
        self.requested_round = 0
        self.grows = False

    @property
    def round(self) -> int:
        """Return the round that this node is in, 0 before the first."""
        return self.reply.round if self.reply is not None else 0

    @property
    def is_round_outdated(self) -> bool:
        """Return whether another node has left the round of this one, so that its workers must restart."""
        return self.requested_round > self.round > 0

    def single_node_reply(self, port: int) -> JoinReply:
        """Return the reply for the only node of a run, without the platform; each call is a new round."""
        mine = JoinRequest(node_index=0, name=self._identity.name, address=self._identity.address, store_port=port)
        here = self._identity.address
        self.reply = JoinReply(
            state="placed", round=self.round + 1, node_rank=0, store_host=here, store_port=port, nodes=[mine]
        )
        return self.reply

    def join_next_round(self, port: int, because: str = "") -> JoinReply | None:
        """Join the next round and return the reply, with state `placed`, or `over` if the attempt has ended.

        Return None if the run is to stop, or the other nodes did not rejoin within REJOIN_PATIENCE_SECONDS. `because`:
        why this node left the round before. Raises TrainerError.
        """
        first = self.reply is None
        asked = max(self.round + 1, self.requested_round)
        deadline = None if first else time.monotonic() + REJOIN_PATIENCE_SECONDS
        pause, missing = _MIN_PAUSE_SECONDS, -1
        while not self._is_ended():
            wait = WAIT_SECONDS if deadline is None else deadline - time.monotonic()
            reply = self._ask(port, asked, because, wait)
            if reply is None:
                return None
            asked = max(asked, reply.round)
            if reply.state in ("placed", "over"):
                self.reply = reply
                return reply
            if reply.state == "spare":
                deadline = None  # it waits for as long as the others train
            elif deadline is not None and time.monotonic() > deadline:
                return None
            elif reply.missing != missing:
                missing = reply.missing
                logger.info("rendezvous round %d: waiting for %d more nodes", reply.round, missing)
            self._wait(pause)
            pause = min(pause * 1.5, _MAX_PAUSE_SECONDS)
        return None

    def leave(self, because: str) -> bool:
        """Let the next round be without this node. Return whether the others are enough: a spare one among them takes
        its place, or the job may train on fewer."""
        reply = self._ask(1, max(self.round + 1, self.requested_round), because, 0, leaves=True)
        return reply is not None and reply.state != "over"

    def wait_until_over(self, because: str) -> None:
        """Wait until the attempt is over; call it after `leave`."""
        while not self._is_ended():
            reply = self._ask(1, max(self.round + 1, self.requested_round), because, WAIT_SECONDS, leaves=True)
            if reply is None or reply.state == "over":
                return
            self._wait(_MAX_PAUSE_SECONDS)

    def _ask(
        self, port: int, round_: int, because: str, wait_seconds: float, *, leaves: bool = False
    ) -> JoinReply | None:
        """Return the platform's reply; None if the run is to stop."""
        join = JoinRequest(
            node_index=self._identity.index, name=self._identity.name, address=self._identity.address, store_port=port,
            topology=self._identity.topology, round=round_, because=because[:2000], leaves=leaves,
            wait_seconds=min(max(int(wait_seconds), 1), WAIT_SECONDS) if wait_seconds else 0,
        )  # fmt: skip
        return self._platform.rendezvous(join, self._is_ended)

    def resume_of(self, reply: JoinReply, known: CheckpointManifest | None) -> CheckpointManifest | None:
        """Return the manifest of the checkpoint that a round resumes from, which is `known` unless that has changed."""
        if reply.resume_from is None:
            return reply.resume  # of a platform of an earlier version
        if known is not None and known.id == reply.resume_from:
            return known
        return self._platform.checkpoint(reply.resume_from)


def format_mapping(reply: JoinReply, sizes: MeshSizes, processes_per_node: int) -> str:
    """Return lines for the log: the ranks of each node, and the nodes and switches that each mesh axis spans."""
    lines = [f"rendezvous round {reply.round}: {len(reply.nodes)} nodes with {processes_per_node} processes each"]
    for rank, node in enumerate(reply.nodes):
        first = rank * processes_per_node
        above = f" under switch {'/'.join(node.topology)}" if node.topology else ""
        lines.append(f"  ranks {first} to {first + processes_per_node - 1}: {node.name} ({node.address}){above}")
    for axis, (nodes, farthest) in spans(sizes, processes_per_node, reply.nodes).items():
        where = (
            "within one node" if nodes == 1 else f"across {nodes} nodes, at most {farthest} switches between neighbours"
        )
        lines.append(f"  {axis} ({sizes.named[axis]}): {where}")
    return "\n".join(lines)


def max_neighbour_hops(reply: JoinReply) -> int:
    """Return the largest number of switches between two nodes of consecutive rank."""
    return max((hops(one, other) for one, other in zip(reply.nodes, reply.nodes[1:], strict=False)), default=0)
