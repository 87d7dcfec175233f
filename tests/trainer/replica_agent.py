"""`python -m tests.trainer.replica_agent KIND`: the agent of a node whose ranks wait until their copies have arrived.

So a step takes as long as a transfer, as in a larger run, and how many steps are lost does not depend on the machine.
KIND `altered`: the newest copy of each rank of another node is changed in memory before the second round. `stuck`:
this node never answers one that sends it a copy, and its ranks do not wait.
"""

import sys
import threading

from trainer.agent import __main__ as agent
from trainer.agent import worker_group
from trainer.agent.replica_server import ReplicaServer
from trainer.agent.worker_process import run_worker
from trainer.resilience.assignment import Assignment


def work_when_replicated(assignment: Assignment) -> None:
    """Stands in for `run_worker`."""
    from trainer.checkpoint.replicator import Replicator
    from trainer.checkpoint.shadow import ShadowCheckpoints

    protect_state, send_one, arrived = ShadowCheckpoints.protect_state, Replicator._send, threading.Condition()
    newest = [-1]

    def send_and_notify(self: Replicator, order: object) -> bool:
        is_sent = send_one(self, order)
        with arrived:
            newest[0] = order.step if is_sent else newest[0]
            arrived.notify_all()
        return is_sent

    def protect_and_wait(self: ShadowCheckpoints, next_step: int) -> None:
        protect_state(self, next_step)
        if self._replicator is not None and self._sent is not None:
            with arrived:
                arrived.wait_for(lambda: newest[0] == self._sent[1])

    Replicator._send, ShadowCheckpoints.protect_state = send_and_notify, protect_and_wait
    run_worker(assignment)


def alter_before_second_round() -> None:
    """Flip a bit of the newest copies when the second round begins."""
    begin_round = ReplicaServer.begin_round

    def alter(self: ReplicaServer, round_: int) -> None:
        for each in self._replicas if round_ == 2 else []:
            each.memory.data(each.newest)[1000] ^= 1
        begin_round(self, round_)

    ReplicaServer.begin_round = alter


if __name__ == "__main__":
    if sys.argv[1] == "stuck":
        ReplicaServer._receive = lambda *_: threading.Event().wait()
    else:
        worker_group.run_worker = work_when_replicated
    if sys.argv[1] == "altered":
        alter_before_second_round()
    sys.exit(agent.main())
