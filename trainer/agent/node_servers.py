"""The processes of a node that its agent and its ranks depend on: the fork server and the rendezvous store."""

import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable

from trainer.resilience.description import process_state
from trainer.resilience.forking import ForkedProcess, fork_server_pid
from trainer.resilience.progress import StoppedTime
from trainer.resilience.store_server import StoreAddress, start_store

_POLL_SECONDS = 0.5


class NodeServers:
    """Starts the rendezvous store, and kills either server when it has been stopped (SIGSTOP) for too long.

    Without the fork server, the parent of all ranks, the agent can neither start ranks nor learn of their ends, and
    would wait for it forever. What waits for a server that was killed fails, and a new server is started when it is
    needed.
    """

    def __init__(self, address: str, follow: Callable[[ForkedProcess, int], None]) -> None:
        """`address`: of this node, for the store. `follow` reads the output of a process."""
        self._address, self._follow = address, follow
        self._store: ForkedProcess | None = None
        self._store_address: StoreAddress | None = None

    def watch(self, report: Callable[[str, float], None], ended: threading.Event) -> None:
        """Start the thread that kills stopped servers, until `ended`. `report` is called before, with the name
        of each and the seconds for which it has been stopped."""
        threading.Thread(target=self._watch, args=(report, ended), name="server-watch", daemon=True).start()

    def store_address(self, num_ranks: int) -> StoreAddress:
        """Return the address of the rendezvous store of this node; start the store if it is not running.

        It outlives the workers, but not the fork server. Raises TrainerError, as `start_store`."""
        if self._store_address is None or self._store is None or not self._store.process.is_alive():
            self._store, self._store_address = start_store(self._address, num_ranks)
            self._follow(self._store, -1)
        return self._store_address

    @property
    def has_lost_store(self) -> bool:
        """Return whether the store has ended. Call it from the thread that starts the processes of this node."""
        return self._store is not None and not self._store.process.is_alive()

    def kill_store(self) -> None:
        """Kill the rendezvous store, if there is one."""
        if self._store is not None:
            self._store.process.kill()
            self._store = None

    def pids(self) -> dict[str, int]:
        """Return the pids of the servers that have been started, by their names."""
        store = self._store
        pids = {"fork server": fork_server_pid(), "rendezvous store": store.process.pid if store is not None else None}
        return {name: pid for name, pid in pids.items() if pid is not None}

    def _watch(self, report: Callable[[str, float], None], ended: threading.Event) -> None:
        stopped: defaultdict[int, StoppedTime] = defaultdict(StoppedTime)
        before = time.monotonic()
        while not ended.wait(_POLL_SECONDS):
            now = time.monotonic()
            passed, before = now - before, now
            for name, pid in self.pids().items():
                stopped[pid].observe(is_stopped=process_state(pid)[0] in "Tt", seconds=passed)
                if stopped[pid].is_too_long:
                    report(name, stopped.pop(pid).seconds)
                    os.kill(pid, signal.SIGKILL)
