"""The folder of an attempt: its file names, and queries. Standard library only: the shim runs with `-I`."""

import fcntl
import os
import signal
from pathlib import Path

LOCK = "lock"
STARTED = "started"
EXIT = "exit.json"
STOP = "stop"
KILL = "kill"
LOG = "log"
SLOTS = "slots"


def is_locked(place: Path) -> bool:
    """Return whether a live shim holds the folder's lock."""
    try:
        descriptor = os.open(place / LOCK, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def slots(place: Path) -> int:
    """Return the slots of an attempt; 1 for an attempt that an older version started."""
    try:
        return int((place / SLOTS).read_text())
    except FileNotFoundError:
        return 1


def start_time(pid: int) -> str:
    """Return the kernel's start time of a process in clock ticks since boot. With the pid it is unique."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def is_same_process(pid: int, started: str) -> bool:
    """Return whether the process with this pid is the one that started then."""
    try:
        return start_time(pid) == started
    except (FileNotFoundError, ProcessLookupError):
        return False


def wake_shim(place: Path) -> None:
    """Wake the shim, which then reads `stop` and `kill`."""
    try:
        pid, started, *_ = (place / STARTED).read_text().split()
    except (FileNotFoundError, ValueError):
        return
    if is_same_process(int(pid), started):
        os.kill(int(pid), signal.SIGUSR1)


def end_leftovers(place: Path) -> None:
    """Kill the process group of an agent whose shim has died, if the group is still the same."""
    try:
        pid, started = (place / "agent").read_text().split()
    except (FileNotFoundError, ValueError):
        return
    if is_same_process(int(pid), started):
        os.killpg(int(pid), signal.SIGKILL)
