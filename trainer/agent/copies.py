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
        self._shadows: dict[int, tuple[int, ShadowMemory | None]] = {}
        self._server: ReplicaServer | None = None

    def shadow_of(self, run: RunConfig, local_rank: int, rank: int) -> ShadowMemory | None:
        """Return the memory for shadow checkpoints of a rank; None if the run takes none.

        If the local rank was another rank before, the copies of that one are held for the node that has it now."""
        if run.checkpoint.shadow_every_steps == "none" or not run.max_restarts_in_place + run.spare_nodes:
            return None
        before, memory = self._shadows.get(local_rank, (rank, None))
        if memory is not None and before != rank:
            self._hand_over(before, memory)
            memory = None
        if memory is None:
            slots = REPLICATED_SLOTS if _is_replicated(run) else SLOTS
            memory = ShadowMemory.create(f"{run.job_id}-{local_rank}", slots)
        self._shadows[local_rank] = rank, memory
        return memory

    def peers(self, run: RunConfig, job_key: str, reply: JoinReply) -> Peers | None:
        """Return what ranks need to send and fetch copies; None if the run has no spare nodes, which would need them.

        Call it after `shadow_of` for all ranks of the node."""
        if not _is_replicated(run) or all(memory is None for _, memory in self._shadows.values()):
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
        return Peers(server.host, server.port, secret, server.held(), server.held_bytes, domains)

    @property
    def was_restored(self) -> bool:
        """Return whether the newest worker group began from a copy."""
        return any(memory is not None and memory.restored_step() is not None for _, memory in self._shadows.values())

    def drop(self) -> None:
        """Free the memory of all copies. Call it while no rank runs."""
        for _, memory in self._shadows.values():
            if memory is not None:
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

    def _hand_over(self, rank: int, memory: ShadowMemory) -> None:
        """Hold the copies of a rank that another node has now."""
        copies = {}
        if self._server is not None and memory.attach():
            for header in memory.headers():
                if header.text is not None:
                    copies[header.slot] = CopyId(header.step, json.loads(header.text)["restart_count"])
        if self._server is None or not copies:
            memory.close()
            return
        self._server.adopt(rank, memory, copies, memory.size)


def _is_replicated(run: RunConfig) -> bool:
    return run.layout.nodes > 1 and run.spare_nodes > 0
