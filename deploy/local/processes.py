"""Processes known across restarts of the supervisor: a pid alone may have been given to a stranger since."""

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

START_TIME_FIELD = 19  # of /proc/PID/stat after the name, which may itself hold spaces


@dataclass(frozen=True)
class ProcessIdentity:
    """A pid and when it started, in the kernel's ticks since boot (which no change of the clock moves)."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> "ProcessIdentity | None":
        """Return the identity of a process that exists now, None if there is none."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return None
        return cls(pid, int(stat.rpartition(")")[2].split()[START_TIME_FIELD]))

    @classmethod
    def from_json(cls, value: dict[str, int] | None) -> "ProcessIdentity | None":
        """Return the identity that `to_json` gave."""
        return cls(value["pid"], value["started"]) if value else None

    def to_json(self) -> dict[str, int]:
        """Return the identity as JSON."""
        return {"pid": self.pid, "started": self.started}

    def process(self) -> psutil.Process | None:
        """Return the process, or None if it has ended (as a zombie has) or the pid belongs to a different process."""
        if ProcessIdentity.of(self.pid) != self:
            return None
        try:
            found = psutil.Process(self.pid)
            return None if found.status() == psutil.STATUS_ZOMBIE else found
        except psutil.NoSuchProcess:
            return None

    def is_alive(self) -> bool:
        """Return whether the process still runs."""
        return self.process() is not None

    def stop(self, stop_signal: int, grace_seconds: float) -> None:
        """Ask, wait, then kill the whole process group. For processes that are not our children."""
        found = self.process()
        if found is None:
            return
        try:
            found.send_signal(stop_signal)
            found.wait(grace_seconds)
        except psutil.NoSuchProcess:
            return
        except psutil.TimeoutExpired:
            kill_group(self.pid)
            psutil.wait_procs([found], timeout=grace_seconds)


def kill_group(pid: int) -> None:
    """SIGKILL to what a service leaves behind. Each service leads a group of its own."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def cpu_seconds(identity: ProcessIdentity | None) -> float:
    """Return the CPU time that a process and its living descendants have used; 0 if it has ended."""
    root = identity.process() if identity else None
    total = 0.0
    with suppress(psutil.NoSuchProcess):
        for process in [root, *root.children(recursive=True)] if root else []:
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system
    return total


def proportional_memory_bytes(root: psutil.Process, *, with_children: bool) -> int:
    """PSS of a process (and its descendants): shared pages are counted once among those that share them."""
    total = 0
    for process in [root, *(root.children(recursive=True) if with_children else [])]:
        try:
            total += process.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return total
