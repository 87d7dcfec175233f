"""Start worker processes from Python's fork server, which has imported torch in advance."""

import atexit
import contextlib
import faulthandler
import multiprocessing
import os
import signal
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from trainer.contract.run import EndClass
from trainer.errors import TrainerError
from trainer.resilience.parent_death import die_with_parent
from trainer.resilience.stop_signals import ignore_stop_signals

MAX_FORK_SERVERS = 3
_context = multiprocessing.get_context("forkserver")
_started: "weakref.WeakSet[BaseProcess]" = weakref.WeakSet()


def start_fork_server() -> None:
    """Begin importing torch in the background. Call from the main thread, whose end ends the server.

    The server's libraries read these settings when they are loaded. numpy's BLAS must not start a thread pool, whose
    threads would be lost at the fork. OpenMP threads must sleep, not spin, while they wait: a rank shares its cores
    with its neighbours, and where there are more threads than cores, spinning makes a step several times slower.
    """
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Asking the driver itself whether there is a GPU would initialise it, and it does not survive a fork.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # below, torch's profiler logs each start and stop
    _context.set_forkserver_preload(["trainer.resilience.preload"])
    forkserver.ensure_running()


@dataclass
class ForkedProcess:
    """A started process, and the reading ends of the pipes of its standard output and error."""

    process: BaseProcess
    stdout: Connection
    stderr: Connection


def fork(name: str, target: Callable[..., None], *arguments: Any) -> ForkedProcess:
    """Run `target(*arguments)` in a new process. Waits until the fork server has imported torch.

    A fork server that was killed is replaced; raises TrainerError (PROCESS_KILLED) if that happens repeatedly.
    """
    for _ in range(MAX_FORK_SERVERS):
        try:
            return _fork(name, target, *arguments)
        except (EOFError, ConnectionError):
            _wait_for_end_of_fork_server()
    raise TrainerError(
        EndClass.PROCESS_KILLED,
        f"the fork server was killed {MAX_FORK_SERVERS} times while it started {name}; see the node's system log",
    )


def _wait_for_end_of_fork_server() -> None:
    """Wait until the fork server, which has closed a connection, has ended: only then does Python replace it."""
    pid = fork_server_pid()
    if pid is not None:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def fork_server_pid() -> int | None:
    """Return the pid of the fork server, None if it has not been started."""
    pid: int | None = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined] # there is no public name
    return pid


def _fork(name: str, target: Callable[..., None], *arguments: Any) -> ForkedProcess:
    stdout, stdout_writer = _context.Pipe(duplex=False)
    stderr, stderr_writer = _context.Pipe(duplex=False)
    process = _context.Process(
        target=_run, args=(target, arguments, stdout_writer, stderr_writer, time.monotonic()), name=name, daemon=True
    )
    process.start()
    _started.add(process)
    stdout_writer.close()
    stderr_writer.close()
    return ForkedProcess(process, stdout, stderr)


@atexit.register
def kill_all() -> None:
    """Kill all started processes at exit: they ignore SIGTERM, so multiprocessing would wait for them forever, as it
    would for the word of a stopped fork server that they have ended.

    It was registered before this function, and so runs after it.
    """
    for process in _started:
        if process.is_alive():
            process.kill()
    pid = fork_server_pid()
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def make_pipe() -> tuple[Connection, Connection]:
    """Return (reading end, writing end), both of which can be passed to `fork`."""
    return _context.Pipe(duplex=False)


def _run(
    target: Callable[..., None], arguments: tuple[Any, ...], stdout: Connection, stderr: Connection, asked_at: float
) -> None:
    from trainer.resilience import preload  # noqa: PLC0415 - loads torch: only ever inside the fork server's children

    die_with_parent(preload.SERVER_PID)
    ignore_stop_signals()
    os.dup2(stdout.fileno(), 1)
    os.dup2(stderr.fileno(), 2)
    stdout.close()
    stderr.close()
    faulthandler.enable()
    FORK_PHASES["import"] = preload.IMPORT_SECONDS, preload.IMPORT_FINISHED_AT
    FORK_PHASES["fork"] = time.monotonic() - asked_at, datetime.now(UTC)
    target(*arguments)


FORK_PHASES: dict[str, tuple[float, datetime]] = {}
"""In a forked process: duration in seconds and end of its server's imports, and of the fork itself."""
