"""A pool of warm processes that form process groups of any size up to its own, again and again."""

import os
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any

from trainer.resilience.forking import ForkedProcess, fork, make_pipe, start_fork_server
from trainer.resilience.store_server import StoreAddress, start_store

RUNS_PER_PROCESS = 20
"""Gloo's threads outlive the process groups they served: after so many groups, new processes are cheaper."""


class RankDied(RuntimeError):
    """A rank's process has ended without an exception of Python: killed, or crashed in native code."""


class RankPool:
    """`run(4, function, *arguments)` calls `function(mesh, *arguments)` on ranks 0 .. 3 of a new process group and
    returns their results in order. Functions, arguments and results are pickled; a function is one that an import
    finds. An exception on a rank is raised here, with the rank's own traceback; the next run begins with new ones.

    A rank that dies is reported as a warning and the run is repeated once, with new processes: a thread of gloo
    crashed once in several thousand groups (torch 2.13), and what is tested here has no native code of its own."""

    def __init__(self, size: int) -> None:
        self._size, self._runs = size, 0
        self._ranks: list[tuple[ForkedProcess, Connection, Connection]] = []
        start_fork_server()

    def _start(self) -> None:
        self._store, self._address = start_store("127.0.0.1", self._size)
        for rank in range(self._size):
            orders, to_rank = make_pipe()
            from_rank, results = make_pipe()
            forked = fork(f"rank{rank}", serve, rank, self._address, orders, results)
            orders.close()
            results.close()
            self._ranks.append((forked, to_rank, from_rank))

    def run(self, world_size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        try:
            return self._run(world_size, function, arguments)
        except RankDied as died:
            warnings.warn(f"{died}\nThe run is repeated.", stacklevel=2)
            return self._run(world_size, function, arguments)

    def _run(self, world_size: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> list[Any]:
        self._runs += 1
        if self._runs % RUNS_PER_PROCESS == 0:
            self.close()
        if not self._ranks:
            self._start()
        for _, to_rank, _ in self._ranks[:world_size]:
            to_rank.send((self._runs, world_size, function, arguments))
        waiting = {from_rank: rank for rank, (_, _, from_rank) in enumerate(self._ranks[:world_size])}
        answers: dict[int, Any] = {}
        while waiting:
            for from_rank in wait(list(waiting)):
                rank = waiting.pop(from_rank)
                try:
                    is_good, answer = from_rank.recv()
                except EOFError:
                    died = self._died(rank, world_size)
                    self.close()
                    raise died from None
                if not is_good:
                    # The error of a rank that lost its connection may arrive before the end of the one that died.
                    dead = [waiting[ended] for ended in wait(list(waiting), timeout=1.0) if _has_ended(ended)]
                    error = self._died(dead[0], world_size) if dead else RuntimeError(answer)
                    self.close()  # the others would wait for it
                    raise error
                answers[rank] = answer
        return [answers[rank] for rank in range(world_size)]

    def _died(self, rank: int, world_size: int) -> RankDied:
        return RankDied(f"rank {rank} of {world_size} died: {_rest(self._ranks[rank][0].stderr)}")

    def close(self) -> None:
        if self._ranks:
            for forked, _, _ in self._ranks:
                forked.process.kill()
                forked.process.join()
            self._store.process.kill()
            self._ranks = []

    def __enter__(self) -> "RankPool":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def serve(rank: int, address: StoreAddress, orders: Connection, results: Connection) -> None:
    """In a rank's process, until it is killed."""
    import torch
    from torch.distributed import PrefixStore, TCPStore

    from trainer.parallel.mesh import join, leave

    torch.set_num_threads(1)
    store = TCPStore(address.host, address.port, is_master=False)
    while True:
        run, world_size, function, arguments = orders.recv()
        try:
            mesh = join(rank, world_size, 0, PrefixStore(f"run{run}/", store), single_node=True)
            answer = function(mesh, *arguments)
            del mesh
            leave()
            results.send((True, answer))
        except BaseException:  # noqa: BLE001 - raised again by `run`
            results.send((False, f"rank {rank} of {world_size}:\n{traceback.format_exc()}"))


def _has_ended(results: Connection) -> bool:
    try:
        results.recv()
    except EOFError:
        return True
    return False


def _rest(pipe: Connection) -> str:
    """What a rank has written and nobody has read."""
    return os.read(pipe.fileno(), 2**16).decode(errors="replace")[-4000:] if pipe.poll(1.0) else ""
