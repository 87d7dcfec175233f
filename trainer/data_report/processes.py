"""Compute batches in processes beside this one, with the results in order. Little data is computed here: a process
takes some tenths of a second to start."""

import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from trainer.contract.run import EndClass
from trainer.errors import TrainerError

Batch = TypeVar("Batch")
Result = TypeVar("Result")
BATCHES_HERE = 16
"""Batches that are computed before processes are started."""
_PER_PROCESS = 2  # batches in memory

_PROGRAM = "import sys; sys.path[:] = {path!r}; from trainer.data_report import processes; processes.serve({number})"
"""A new interpreter, unlike a fork, has none of the agent's threads, and it does not run the caller's program."""


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
        self._started: list[tuple[subprocess.Popen[bytes], Connection]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the processes."""
        if kind is not None:
            for process, _ in self._started:
                process.kill()  # a thread can wait for its result
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
        for process, connection in self._started:
            connection.close()
            process.wait()

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
            here, there = Pipe()
            program = _PROGRAM.format(path=sys.path, number=there.fileno())
            process = subprocess.Popen([sys.executable, "-c", program], pass_fds=[there.fileno()])
            there.close()
            here.send((self._make, self._arguments))
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
        finally:
            self._idle.put(connection)  # one of a process that has ended fails for the next batch too
        if isinstance(result, Exception):
            raise result
        return result


def serve(number: int) -> None:
    """Compute batches that arrive at the connection with this file descriptor, until its other end is closed, as it is
    when its process ends."""
    for number_of_signal in (signal.SIGINT, signal.SIGTERM):  # the process that reads the data stops this one
        signal.signal(number_of_signal, signal.SIG_IGN)
    os.environ["RAYON_NUM_THREADS"] = "1"  # of the tokenizers library: each core has a process
    connection = Connection(number)
    with suppress(EOFError, ConnectionError):
        make, arguments = connection.recv()
        compute = make(*arguments)
        while True:
            connection.send(_result(compute, connection.recv()))


def _result(compute: Callable[[Any], Any], batch: Any) -> Any:
    try:
        return compute(batch)
    except Exception as error:  # noqa: BLE001 - raised again by the process that reads the data
        return error
