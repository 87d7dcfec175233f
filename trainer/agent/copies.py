"""Memory for copies of states on this node: shadow checkpoints of its ranks, and those of another node's ranks."""

import json
import logging

from trainer.agent.rendezvous_client import NodeIdentity
from trainer.agent.replica_server import ReplicaServer
from trainer.contract.node_rendezvous import JoinReply
from trainer.contract.run import RunConfig
from trainer.resilience.peer_link import Peers, secret_of
from trainer.resilience.replicas import CopyId
from trainer.resilience.shadow_memory import REPLICATED_SLOTS, SLOTS, ShadowMemory

logger = logging.getLogger(__name__)


class NodeCopies:
    """Belongs to the agent: it outlives the ranks, and nothing of it outlives the agent."""

    def __init__(self, node: NodeIdentity) -> None:
        self._node = node
        self._shadows: dict[int, tuple[int, int, ShadowMemory]] = {}  # rank, number of ranks, memory; by local rank
        self._server: ReplicaServer | None = None

    def shadow_of(self, run: RunConfig, local_rank: int, rank: int) -> ShadowMemory | None:
        """Return the memory for shadow checkpoints of a rank; None if the run takes none.

        If the local rank was another rank before, or one of another number of ranks, the copies of that one are held
        for the ranks that there are now."""
        if not run.makes_shadows:
            return None
        before = self._shadows.get(local_rank)
        if before is not None and before[:2] == (rank, run.layout.world_size):
            return before[2]
        if before is not None:
            self._hand_over(*self._shadows.pop(local_rank))
        memory = ShadowMemory.create(f"{run.job_id}-{local_rank}", REPLICATED_SLOTS if run.is_replicated else SLOTS)
        if memory is not None:
            self._shadows[local_rank] = rank, run.layout.world_size, memory
        return memory

    def peers(self, run: RunConfig, job_key: str, reply: JoinReply) -> Peers | None:
        """Return what ranks need to send and fetch copies; None if the run continues on no other nodes, which would
        need them.

        Call it after `shadow_of` for all ranks of the node."""
        if not self._shadows or (self._server is None and not run.is_replicated):
            return None
        secret = secret_of(job_key, run.attempt_id)
        domains = [tuple(node.topology) or (node.name,) for node in reply.nodes] if reply.node_rank == 0 else []
        if self._server is None:
            try:
                self._server = ReplicaServer(self._node.address, secret, run.layout.processes_per_node)
            except OSError as error:
                logger.warning("the agent cannot listen on %s: %s", self._node.address, error)
                return Peers(self._node.address, 0, secret, [], 0, domains)
        server = self._server
        server.begin_round(reply.round)
        held_bytes = server.held_bytes(with_adopted=not run.is_replicated)
        return Peers(server.host, server.port, secret, server.held(), held_bytes, domains)

    @property
    def was_restored(self) -> bool:
        """Return whether the newest worker group began from a copy."""
        return any(memory.restored_step() is not None for _, _, memory in self._shadows.values())

    def drop(self) -> None:
        """Free the memory of all copies. Call it while no rank runs."""
        for _, _, memory in self._shadows.values():
            memory.close()
        self._shadows = {}
        self.drop_replicas()

    def drop_replicas(self) -> None:
        """Free the copies of other nodes' ranks."""
        if self._server is not None:
            self._server.drop()

    def close(self) -> None:
        """Free everything, and stop listening."""
        self.drop()
        if self._server is not None:
            self._server.close()

    def _hand_over(self, rank: int, world_size: int, memory: ShadowMemory) -> None:
        """Hold the copies of a rank that this place has no longer."""
        copies = {}
        if self._server is not None and memory.attach():
            for header in memory.headers():
                if header.text is not None:
                    copies[header.slot] = CopyId(header.step, json.loads(header.text)["restart_count"], world_size)
        if self._server is None or not copies:
            memory.close()
            return
        self._server.adopt(rank, memory, copies, memory.size)
