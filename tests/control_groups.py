"""A limit of memory for some processes, as a container has one."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from trainer.resilience.failures import memory_counters

POLL_SECONDS = 0.02


@contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path]:
    """Yield the `cgroup.procs` of a new control group with this limit; a process id written there moves that process.

    Skips the test where this user may not make control groups, or where the machine can swap.
    """
    counters = [place for place in memory_counters(Path("/")) if place.exists() or place.name == "memory.events"]
    if not counters or len(Path("/proc/swaps").read_text().splitlines()) > 1:
        pytest.skip("no memory controller, or memory can be swapped out")
    group = counters[0].parent / f"athanor-test-{os.getpid()}"
    limit = "memory.limit_in_bytes" if counters[0].name == "memory.oom_control" else "memory.max"
    try:
        group.mkdir()
        (group / limit).write_text(str(limit_bytes))
    except OSError as error:
        if group.exists():
            group.rmdir()
        pytest.skip(f"this user may not limit memory: {error}")
    try:
        yield group / "cgroup.procs"
    finally:
        for pid in (group / "cgroup.procs").read_text().split():
            _move(pid, group.parent / "cgroup.procs")
        group.rmdir()


@contextmanager
def memory_limit_of_jobs(stack, limit_bytes: int) -> Iterator[None]:
    """Move each process of a job of the stack, as soon as it exists, to a control group with this limit."""
    with memory_group(limit_bytes) as procs:
        closing = threading.Event()
        mover = threading.Thread(target=_move_jobs, args=(stack, procs, closing))
        mover.start()
        try:
            yield
        finally:
            closing.set()
            mover.join()


def _move_jobs(stack, procs: Path, closing: threading.Event) -> None:
    inside: set[int] = set()
    while not closing.wait(POLL_SECONDS):
        for process in stack.job_processes():
            if process.pid not in inside and _move(str(process.pid), procs):
                inside.add(process.pid)


def _move(pid: str, procs: Path) -> bool:
    try:
        procs.write_text(pid)
    except OSError:  # the process has ended
        return False
    return True
