"""Compute batches in processes beside this one, with the results in order. Little data is computed here: a process
takes some tenths of a second to start."""

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from trainer.contract.run import EndClass
from trainer.errors import TrainerError

Batch, Result = TypeVar("Batch"), TypeVar("Result")
BATCHES_HERE = 16
"""Batches that are computed before processes are started."""
_PER_PROCESS = 2  # batches in memory

# A new interpreter has none of the threads and connections of the agent.
_context = multiprocessing.get_context("spawn")


class Pipeline(Generic[Batch, Result]):
    """Computes `make(*arguments)(batch)` for batches. Both must be picklable. `processes`: None for one per core."""

    def __init__(
        self, make: Callable[..., Callable[[Batch], Result]], *arguments: Any, processes: int | None = None
    ) -> None:
        self._make, self._arguments = make, arguments
        self._count = len(os.sched_getaffinity(0)) if processes is None else processes
        self._compute, self._batches = make(*arguments), 0
        self._threads: ThreadPoolExecutor | None = None
        self._pending: deque[Future[Result]] = deque()
        self._idle: SimpleQueue[Connection] = SimpleQueue()
        self._started: list[tuple[multiprocessing.process.BaseProcess, Connection]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """End the processes."""
        for process, connection in self._started:
            if kind is not None:
                process.kill()  # a thread can wait for its result
            connection.close()
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
        for process, _ in self._started:
            process.join()

    def put(self, batch: Batch) -> Iterator[Result]:
        """Add a batch. Yield results of earlier batches, or of this one, that are complete."""
        self._batches += 1
        if self._batches <= BATCHES_HERE or self._count < 2:
            yield self._compute(batch)
            return
        if self._threads is None:
            self._threads = self._start()
        self._pending.append(self._threads.submit(self._remotely, batch))
        while len(self._pending) >= _PER_PROCESS * self._count:
            yield self._pending.popleft().result()

    def finish(self) -> Iterator[Result]:
        """Yield the results that are left."""
        while self._pending:
            yield self._pending.popleft().result()

    def map(self, batches: Iterable[Batch]) -> Iterator[Result]:
        """Yield the result of each batch; some batches are read in advance."""
        for batch in batches:
            yield from self.put(batch)
        yield from self.finish()

    def _start(self) -> ThreadPoolExecutor:
        for _ in range(self._count):
            here, there = _context.Pipe()
            process = _context.Process(target=_run, args=(there, self._make, self._arguments), daemon=True)
            process.start()
            there.close()
            self._started.append((process, here))
            self._idle.put(here)
        return ThreadPoolExecutor(self._count)

    def _remotely(self, batch: Batch) -> Result:
        connection = self._idle.get()
        try:
            connection.send(batch)
            result: Result | Exception = connection.recv()
        except (EOFError, OSError) as error:
            message = "a process that makes the data report ended unexpectedly; see the node's system log"
            raise TrainerError(EndClass.PROCESS_KILLED, message) from error
        self._idle.put(connection)
        if isinstance(result, Exception):
            raise result
        return result


def _run(connection: Connection, make: Callable[..., Callable[[Any], Any]], arguments: tuple[Any, ...]) -> None:
    """Compute batches until the other end is closed, as it is when its process ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["RAYON_NUM_THREADS"] = "1"  # of the tokenizers library: each core has a process
    compute = make(*arguments)
    while True:
        try:
            batch = connection.recv()
        except EOFError:
            return
        try:
            result = compute(batch)
        except Exception as error:  # noqa: BLE001 - raised again by the process that reads the data
            result = error
        connection.send(result)
