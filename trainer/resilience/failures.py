"""What a process died of: written by the dying where it still can, concluded by the agent where it cannot."""

import json
import math
import signal
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path

from trainer.contract.encryption import DecryptionError
from trainer.contract.run import EndClass
from trainer.errors import TrainerError

RESTARTABLE = frozenset(
    {EndClass.PROCESS_KILLED, EndClass.COLLECTIVE_TIMEOUT, EndClass.INTERNAL_ERROR, EndClass.STORAGE_ERROR}
)
"""Classes that a retry may fix; the others would recur with the same spec and data."""

# What gloo, NCCL and the store say when the other end is gone. They raise plain RuntimeErrors, so only the text
# identifies them.
_PEER_WORDS = (
    "connection closed by peer", "connection reset", "connection refused", "broken pipe", "socket timeout",
    "timed out waiting", "gloo/transport", "nccl", "recvvalue failed", "sendbytes failed", "failed to recv",
)  # fmt: skip
_OUT_OF_MEMORY_WORDS = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "bad_alloc",
)


@dataclass(frozen=True)
class Failure:
    """`because_of_peer`: a consequence of another rank's end, never its cause. `at`: monotonic seconds."""

    rank: int
    end_class: EndClass
    message: str
    because_of_peer: bool = False
    at: float = 0.0


def describe(error: BaseException, rank: int) -> Failure:
    """Classify an exception that ended a worker."""
    text = f"{type(error).__name__}: {error}"
    lowered = text.lower()
    because_of_peer = False
    if isinstance(error, TrainerError):
        end_class, text = error.end_class, str(error)
    elif isinstance(error, MemoryError) or any(words in lowered for words in _OUT_OF_MEMORY_WORDS):
        end_class = EndClass.OUT_OF_MEMORY
        text = text.partition("\n")[0]
    elif isinstance(error, DecryptionError):
        end_class = EndClass.STORAGE_ERROR
    elif isinstance(error, RuntimeError) and any(words in lowered for words in _PEER_WORDS):
        end_class, because_of_peer = EndClass.COLLECTIVE_TIMEOUT, True
    else:
        end_class = EndClass.INTERNAL_ERROR
        place = traceback.extract_tb(error.__traceback__)[-1] if error.__traceback__ else None
        text += f" (at {Path(place.filename).name}:{place.lineno})" if place else ""
    return Failure(rank, end_class, text[:2000], because_of_peer, time.monotonic())


def write_failure(folder: Path, failure: Failure) -> None:
    """Write the report of a failed rank. A reader sees it complete or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / f"rank-{failure.rank}.json"
    partial = final.with_suffix(".partial")
    partial.write_text(json.dumps(asdict(failure)))
    partial.replace(final)


def read_failures(folder: Path) -> list[Failure]:
    """Return the reports of failed ranks."""
    found = []
    for path in folder.glob("rank-*.json"):
        record = json.loads(path.read_text())
        found.append(Failure(**{**record, "end_class": EndClass(record["end_class"])}))
    return found


def killed(rank: int, exit_code: int, *, kernel_was_short_of_memory: bool) -> Failure:
    """Describe a process that ended without a report: by a signal (negative exit code) or by leaving in the middle."""
    if exit_code < 0:
        name = signal.Signals(-exit_code).name
        if -exit_code == signal.SIGKILL and kernel_was_short_of_memory:
            return Failure(
                rank, EndClass.OUT_OF_MEMORY, f"rank {rank} was killed by the kernel: the node ran out of memory"
            )
        # An abort is how gloo's and NCCL's own threads end a process whose peer is gone: reported failures come first.
        at = math.inf if -exit_code == signal.SIGABRT else 0.0
        return Failure(rank, EndClass.PROCESS_KILLED, f"rank {rank} was killed by {name}", at=at)
    return Failure(rank, EndClass.INTERNAL_ERROR, f"rank {rank} left with status {exit_code} and gave no reason")


def first_cause(failures: list[Failure]) -> Failure:
    """Return the failure that explains the others: a rank that only lost its peer is never the cause if another can be.

    A silent death (at = 0: nobody saw it) comes before the reports of those that it took along.
    """
    assert failures
    return min(failures, key=lambda failure: (failure.because_of_peer, failure.at, failure.rank))


def oom_kills() -> int:
    """How often the kernel killed for memory in this control group; 0 where that cannot be known."""
    try:
        group = Path("/proc/self/cgroup").read_text().strip().rsplit("::", 1)[-1]
        events = Path("/sys/fs/cgroup", group.lstrip("/"), "memory.events").read_text()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in events.splitlines() if line.startswith("oom_kill "))
