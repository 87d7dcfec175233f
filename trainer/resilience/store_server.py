"""The key-value store of the rendezvous of all ranks (torch's TCPStore), in a process of its own.

It outlives worker groups; each group uses keys under its own prefix, so that it never reads addresses of ended
processes.
"""

import contextlib
import resource
import threading
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection

from trainer.contract.run import EndClass
from trainer.errors import TrainerError
from trainer.resilience.failures import LOST_EXIT
from trainer.resilience.forking import MAX_FORK_SERVERS, ForkedProcess, fork, make_pipe

STORE_TIMEOUT = timedelta(minutes=5)
STORE_KILLED = "the process of the rendezvous store was killed"
OTHER_DESCRIPTORS = 100  # of the process itself, and for the checkpoints of the first rank


@dataclass(frozen=True)
class StoreAddress:
    """Where the rendezvous store of a worker group listens."""

    host: str
    port: int


def start_store(host: str, num_ranks: int) -> tuple[ForkedProcess, StoreAddress]:
    """Start a store on a free port of this node, whose name or address is `host`, for a connection of each rank.

    Raises TrainerError if it fails, or if this node allows fewer open files than the ranks need.
    """
    needed, allowed = num_ranks + OTHER_DESCRIPTORS, _hard_limit()
    if num_ranks > max_connections():
        raise TrainerError(
            EndClass.NODE_STORAGE_ERROR,
            f"the rendezvous store of {num_ranks:,} ranks needs {needed:,} open files, and this node allows "
            f"{allowed:,}; raise the hard limit of the agent (LimitNOFILE of its service, ulimit -Hn) to {needed:,}",
        )
    for _ in range(MAX_FORK_SERVERS):
        reader, writer = make_pipe()
        forked = fork("rendezvous", _serve, host, writer)
        writer.close()
        with reader, contextlib.suppress(EOFError):
            return forked, StoreAddress(host, int(reader.recv()))
        forked.process.join()
        if forked.process.exitcode != LOST_EXIT:  # else the fork server has ended, and with it the store
            break
    if forked.process.exitcode == LOST_EXIT or (forked.process.exitcode or 0) < 0:
        raise TrainerError(EndClass.PROCESS_KILLED, STORE_KILLED)
    raise TrainerError(
        EndClass.NETWORK_ERROR,
        f"the rendezvous store cannot listen on {host}; check that it is a name or address of this node",
    )


def _serve(host: str, report: Connection) -> None:
    from torch.distributed import TCPStore  # noqa: PLC0415 - runs in a forked process; the agent stays free of torch

    resource.setrlimit(resource.RLIMIT_NOFILE, (_hard_limit(), _hard_limit()))  # the soft limit is often 1,024
    store = TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=STORE_TIMEOUT)
    report.send(store.port)
    report.close()
    threading.Event().wait()  # until the agent ends it


def max_connections() -> int:
    """Return how many connections a store on this node takes at most."""
    return _hard_limit() - OTHER_DESCRIPTORS


def _hard_limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]
