"""Why a worker process ended: as it reported itself, or else as the agent infers from its exit code."""

import errno
import json
import math
import re
import signal
import socket
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from trainer.contract.encryption import DecryptionError
from trainer.contract.run import EXIT_STATUS, EndClass, vagueness
from trainer.errors import CorruptionError, EvidenceRow, TrainerError
from trainer.resilience.control_groups import group_folders
from trainer.resilience.error_patterns import Pattern, classify_text

RESTARTABLE = frozenset(
    {
        EndClass.PROCESS_KILLED,
        EndClass.COLLECTIVE_TIMEOUT,
        EndClass.NETWORK_ERROR,
        EndClass.HANG,
        EndClass.DEVICE_EXCEPTION,
        EndClass.INTERNAL_ERROR,
        EndClass.STORAGE_ERROR,
        EndClass.SILENT_CORRUPTION,
        EndClass.SLOW_NODE,
    }
)
"""Classes that a restart may fix; the others would recur with the same spec and data."""

LOST_EXIT = 255
"""The exit code that multiprocessing reports of a process whose fork server has ended, and with it its children."""

_ENDS_OF_ERRNOS = {
    errno.ENOMEM: EndClass.OUT_OF_MEMORY,
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.EIO, errno.EREMOTEIO, errno.ESTALE),
        EndClass.NODE_STORAGE_ERROR,
    ),
    **dict.fromkeys(
        (errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ECONNREFUSED, errno.ECONNRESET, errno.ETIMEDOUT),
        EndClass.NETWORK_ERROR,
    ),
}
_MAX_CHAIN = 8
_MAX_MESSAGE = 2000
# What C++ and the runtimes of GPUs print to stderr before they abort the process.
_LAST_WORDS = re.compile(r"^terminate called|^\s*what\(\):|^Memory access fault by GPU|^:?\S*HW Exception by GPU")
_CRASHES = frozenset({signal.SIGSEGV, signal.SIGILL, signal.SIGFPE})

# Python exits with 1 after any exception, so this status does not name a class.
_CLASS_OF_EXIT = {status: end_class for end_class, status in EXIT_STATUS.items() if status > 1}


@dataclass(frozen=True)
class Failure:
    """Why a rank ended. `because_of_peer`: it failed because another rank ended. `at`: `time.monotonic()` of the
    report, which all processes of a node share; 0 for a process that ended without one. `corrupted_step`:
    steps of the state in which replicas differed. `evidence`: `CorruptionError`."""

    rank: int
    end_class: EndClass
    message: str
    because_of_peer: bool = False
    at: float = 0.0
    corrupted_step: int | None = None
    evidence: Sequence[EvidenceRow] = ()


def classify_exception(error: BaseException, rank: int) -> Failure:
    """Return the end class and message of an exception that ended `rank` (-1: the agent).

    An exception that was raised while an earlier one was handled, such as by a clean-up that a fault of the GPU made
    fail, hides that one: of the chain the least vague counts, the last raised first. One that only wraps another
    (`raise ... from`, such as "[Stage 2] failed to run forward" of torch's pipelines) has the class of that one, and
    both are in the message. A message has at most 2,000 characters; that of an internal error has the file and line
    that raised it.
    """
    failures: list[Failure] = []
    wrappers = ""
    chain = list(_chain(error))
    for each in chain:
        failure = _classify_one(each, rank)
        message = f"{failure.message}{wrappers}"[:_MAX_MESSAGE]
        is_wrapper = each.__cause__ is not None and each is not chain[-1]
        if is_wrapper and failure.end_class is EndClass.INTERNAL_ERROR:
            wrappers = f", which led to {' '.join(message.split())}"
        else:
            failures.append(replace(failure, message=message))
            wrappers = ""
    return min(failures, key=lambda failure: (failure.because_of_peer, vagueness(failure.end_class)))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the exception and those that led to it; a TrainerError explains all before it."""
    following: BaseException | None = error
    for _ in range(_MAX_CHAIN):
        if following is None:
            return
        yield following
        if isinstance(following, TrainerError):
            return
        context = None if following.__suppress_context__ else following.__context__
        following = following.__cause__ or context


def _classify_one(error: BaseException, rank: int) -> Failure:
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    because_of_peer, corrupted_step, evidence = False, None, list[EvidenceRow]()
    if isinstance(error, TrainerError):
        end_class, text, because_of_peer = error.end_class, str(error), error.because_of_peer
        if isinstance(error, CorruptionError):
            corrupted_step, evidence = error.step, list(error.evidence)
    elif isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        end_class = EndClass.OUT_OF_MEMORY
    elif isinstance(error, DecryptionError):
        end_class = EndClass.STORAGE_ERROR
    elif isinstance(error, socket.gaierror):
        end_class = EndClass.NETWORK_ERROR
    elif isinstance(error, OSError):
        end_class = _ENDS_OF_ERRNOS.get(error.errno or 0, EndClass.INTERNAL_ERROR)
        because_of_peer = end_class is EndClass.NETWORK_ERROR
    elif (pattern := classify_text(text)) is not None and _may_quote(error, pattern):
        end_class, because_of_peer = pattern.end_class, pattern.because_of_peer
    else:
        end_class = EndClass.INTERNAL_ERROR
    if end_class is EndClass.OUT_OF_MEMORY:
        text = text.partition("\n")[0]
    is_unclear = end_class is EndClass.INTERNAL_ERROR or not str(error)
    if is_unclear and not isinstance(error, TrainerError):
        place = traceback.extract_tb(error.__traceback__)[-1] if error.__traceback__ else None
        text += f" (at {Path(place.filename).name}:{place.lineno})" if place else ""
    return Failure(rank, end_class, text[:_MAX_MESSAGE], because_of_peer, time.monotonic(), corrupted_step, evidence)


def _may_quote(error: BaseException, pattern: Pattern) -> bool:
    """Return whether an exception of this type carries such a message: torch raises RuntimeErrors and classes of them,
    safetensors an error of its own, and readers of data a ValueError."""
    is_native = isinstance(error, RuntimeError) or type(error).__name__ == "SafetensorError"
    return is_native or (pattern.end_class is EndClass.DATA_ERROR and isinstance(error, ValueError))


def write_failure(folder: Path, failure: Failure) -> None:
    """Write the report of a failed rank to `folder/rank-R.json`, which appears only when it is complete."""
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / f"rank-{failure.rank}.json"
    partial = final.with_suffix(".partial")
    partial.write_text(json.dumps(asdict(failure)))
    partial.replace(final)


def read_failures(folder: Path) -> list[Failure]:
    """Return the reports that failed ranks have written to `folder`."""
    found = []
    for path in folder.glob("rank-*.json"):
        record = json.loads(path.read_text())
        found.append(Failure(**{**record, "end_class": EndClass(record["end_class"])}))
    return found


def classify_exit(
    rank: int,
    exit_code: int,
    *,
    had_oom_kill: bool,
    last_lines: Sequence[str] = (),
    gpu_error: tuple[EndClass, str] | None = None,
    process: str = "",
) -> Failure:
    """Return the failure of a process that ended without a report.

    `exit_code`: minus the signal's number if a signal ended it. `had_oom_kill`: the kernel has killed a process of this
    control group for lack of memory since the workers started; a SIGKILL is then counted as out of memory.
    `last_lines`: the end of its stderr, where C++ code names the error for which it aborts. `gpu_error`: what the
    kernel's log says of this node's GPUs since the workers started; it explains a death that nothing else does.
    `process`: what the message calls it; by default `rank` and its number.
    """
    process = process or f"rank {rank}"
    if exit_code < 0:
        name = signal.Signals(-exit_code).name
        if -exit_code == signal.SIGKILL and had_oom_kill:
            return Failure(rank, EndClass.OUT_OF_MEMORY, f"{process} was killed by the kernel for lack of memory")
        if -exit_code == signal.SIGABRT and (said := _last_words(last_lines)) is not None:
            pattern, line = said
            message = f"{process} aborted: {line.strip()}"[:_MAX_MESSAGE]
            return Failure(
                rank, pattern.end_class, message, pattern.because_of_peer, math.inf if pattern.because_of_peer else 0.0
            )
        if gpu_error is not None and -exit_code != signal.SIGTERM:
            message = f"{process} was killed by {name}{_by_kernel_log(gpu_error)}"
            return Failure(rank, gpu_error[0], message[:_MAX_MESSAGE])
        if -exit_code == signal.SIGABRT:
            # Threads of gloo and NCCL abort a process when a peer has ended, so any reported failure, a later one
            # too, is likelier the cause.
            message = f"{process} was killed by {name}"
            return Failure(rank, EndClass.PROCESS_KILLED, message, because_of_peer=True, at=math.inf)
        if -exit_code in _CRASHES:
            return Failure(rank, EndClass.INTERNAL_ERROR, f"{process} crashed with {name}")
        return Failure(rank, EndClass.PROCESS_KILLED, f"{process} was killed by {name}")
    if exit_code in _CLASS_OF_EXIT:
        end_class = _CLASS_OF_EXIT[exit_code]
        return Failure(rank, end_class, f"{process} ended as {end_class} and could not write its report: see its log")
    if exit_code == LOST_EXIT:
        return Failure(rank, EndClass.PROCESS_KILLED, f"{process} was killed together with the fork server")
    message = f"{process} exited with status {exit_code} without a report"
    if gpu_error is not None:
        return Failure(rank, gpu_error[0], f"{message}{_by_kernel_log(gpu_error)}"[:_MAX_MESSAGE])
    return Failure(rank, EndClass.INTERNAL_ERROR, message)


def judge_exception(failure: Failure, gpu_error: tuple[EndClass, str] | None) -> Failure:
    """Return the failure, as a fault of the GPU where it was an exception of a kernel and the kernel's log says so."""
    if (
        failure.end_class is not EndClass.DEVICE_EXCEPTION
        or gpu_error is None
        or gpu_error[0] is not EndClass.GPU_FAULT
    ):
        return failure
    return replace(
        failure, end_class=EndClass.GPU_FAULT, message=f"{failure.message[:1000]}{_by_kernel_log(gpu_error)}"
    )


def _by_kernel_log(gpu_error: tuple[EndClass, str]) -> str:
    return f"; the kernel's log: {gpu_error[1][:500]}"


def _last_words(lines: Sequence[str]) -> tuple[Pattern, str] | None:
    """Return the error that the end of a process's stderr names, and its line."""
    start = next((number for number, line in enumerate(lines) if _LAST_WORDS.search(line)), len(lines))
    found = [(pattern, line) for line in lines[start:] if (pattern := classify_text(line)) is not None]
    return min(found, key=lambda each: vagueness(each[0].end_class), default=None)


def find_root_cause(failures: list[Failure]) -> Failure:
    """Return the failure that caused the others: of those that are not `because_of_peer`, if there are any, the least
    vague, and of these the earliest.

    So a fault of a GPU or a lack of memory on one rank counts, whichever rank reports first. A process that ended
    without a report (`at` 0) comes before the reports of the ranks that lost it. `failures` must not be empty.
    """
    assert failures
    return min(
        failures,
        key=lambda failure: (failure.because_of_peer, vagueness(failure.end_class), failure.at, failure.rank),
    )


def count_oom_kills(root: Path = Path("/")) -> int:
    """Return how many processes the kernel has killed for lack of memory; 0 if unknown.

    Counts those of this control group, of version 1 or 2, where one with a counter can be read, and otherwise those of
    the whole machine. `root`: the folder that contains `proc` and `sys`.
    """
    for place in (*memory_counters(root), root / "proc/vmstat"):
        try:
            lines = place.read_text().splitlines()
        except OSError:
            continue
        counts = [int(line.split()[1]) for line in lines if line.startswith("oom_kill ")]
        if counts:
            return sum(counts)
    return 0


def memory_counters(root: Path) -> Iterator[Path]:
    """Yield the files that may count the OOM kills of this control group."""
    for folder, _, version in group_folders("memory", root):
        yield folder / ("memory.oom_control" if version == 1 else "memory.events")
