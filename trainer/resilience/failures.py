"""Why a worker process ended: as it reported itself, or else as the agent infers from its exit code."""

import errno
import json
import math
import signal
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from trainer.contract.encryption import DecryptionError
from trainer.contract.run import EXIT_STATUS, EndClass
from trainer.errors import TrainerError
from trainer.resilience.control_groups import group_folders

RESTARTABLE = frozenset(
    {
        EndClass.PROCESS_KILLED,
        EndClass.COLLECTIVE_TIMEOUT,
        EndClass.HANG,
        EndClass.INTERNAL_ERROR,
        EndClass.STORAGE_ERROR,
    }
)
"""Classes that a restart may fix; the others would recur with the same spec and data."""

LOST_EXIT = 255
"""The exit code that multiprocessing reports of a process whose fork server has ended, and with it its children."""

# Fragments of the messages of gloo, NCCL and the store when a peer has ended. They raise plain RuntimeErrors, so only
# the text identifies them.
_LOST_PEER_TEXTS = (
    "connection closed by peer", "connection reset", "connection refused", "broken pipe", "socket timeout",
    "timed out waiting", "gloo/transport", "nccl", "recvvalue failed", "sendbytes failed", "failed to recv",
)  # fmt: skip
_OUT_OF_MEMORY_TEXTS = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "bad_alloc",
)
_NODE_STORAGE_ERRNOS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE}
_NODE_STORAGE_TEXTS = ("no space left on device", "read-only file system", "too many open files", "quota exceeded")

# Python exits with 1 after any exception, so this status does not name a class.
_CLASS_OF_EXIT = {status: end_class for end_class, status in EXIT_STATUS.items() if status > 1}


@dataclass(frozen=True)
class Failure:
    """Why a rank ended. `because_of_peer`: it failed because another rank ended. `at`: `time.monotonic()` of the
    report, which all processes of a node share; 0 for a process that ended without one."""

    rank: int
    end_class: EndClass
    message: str
    because_of_peer: bool = False
    at: float = 0.0


def classify_exception(error: BaseException, rank: int) -> Failure:
    """Return the end class and message of an exception that ended `rank` (-1: the agent).

    A message has at most 2,000 characters; that of an internal error ends with the file and line that raised it.
    """
    text = f"{type(error).__name__}: {error}"
    lowered = text.lower()
    because_of_peer = False
    if isinstance(error, TrainerError):
        end_class, text = error.end_class, str(error)
    elif isinstance(error, MemoryError) or any(part in lowered for part in _OUT_OF_MEMORY_TEXTS):
        end_class = EndClass.OUT_OF_MEMORY
        text = text.partition("\n")[0]
    elif _is_of_node_storage(error):
        end_class = EndClass.NODE_STORAGE_ERROR
    elif isinstance(error, DecryptionError):
        end_class = EndClass.STORAGE_ERROR
    elif isinstance(error, RuntimeError) and any(part in lowered for part in _LOST_PEER_TEXTS):
        end_class, because_of_peer = EndClass.COLLECTIVE_TIMEOUT, True
    else:
        end_class = EndClass.INTERNAL_ERROR
        place = traceback.extract_tb(error.__traceback__)[-1] if error.__traceback__ else None
        text += f" (at {Path(place.filename).name}:{place.lineno})" if place else ""
    return Failure(rank, end_class, text[:2000], because_of_peer, time.monotonic())


def _is_of_node_storage(error: BaseException) -> bool:
    """Return whether the node refused to write or open a file. Libraries report this as RuntimeError, too."""
    if isinstance(error, OSError):
        return error.errno in _NODE_STORAGE_ERRNOS
    return isinstance(error, RuntimeError) and any(part in str(error).lower() for part in _NODE_STORAGE_TEXTS)


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


def classify_exit(rank: int, exit_code: int, *, had_oom_kill: bool) -> Failure:
    """Return the failure of a process that ended without a report.

    `exit_code`: minus the signal's number if a signal ended it. `had_oom_kill`: the kernel has killed a process of this
    control group for lack of memory since the workers started; a SIGKILL is then counted as out of memory.
    """
    if exit_code < 0:
        name = signal.Signals(-exit_code).name
        if -exit_code == signal.SIGKILL and had_oom_kill:
            return Failure(rank, EndClass.OUT_OF_MEMORY, f"rank {rank} was killed by the kernel for lack of memory")
        # Threads of gloo and NCCL abort a process whose peer has ended, so any reported failure is the likelier cause.
        at = math.inf if -exit_code == signal.SIGABRT else 0.0
        return Failure(rank, EndClass.PROCESS_KILLED, f"rank {rank} was killed by {name}", at=at)
    if exit_code in _CLASS_OF_EXIT:
        end_class = _CLASS_OF_EXIT[exit_code]
        return Failure(rank, end_class, f"rank {rank} ended as {end_class} and could not write its report: see its log")
    if exit_code == LOST_EXIT:
        return Failure(rank, EndClass.PROCESS_KILLED, f"rank {rank} was killed together with the fork server")
    return Failure(rank, EndClass.INTERNAL_ERROR, f"rank {rank} exited with status {exit_code} without a report")


def find_root_cause(failures: list[Failure]) -> Failure:
    """Return the failure that caused the others: the earliest that is not `because_of_peer`, else the earliest.

    A process that ended without a report (`at` 0) comes before the reports of the ranks that lost it. `failures` must
    not be empty.
    """
    assert failures
    return min(failures, key=lambda failure: (failure.because_of_peer, failure.at, failure.rank))


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
