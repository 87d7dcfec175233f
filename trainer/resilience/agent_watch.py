"""Ranks watch their agent, as it watches them: on its node, nothing else would notice that it makes no progress."""

import os
import signal
import threading
import time
from pathlib import Path

from trainer.contract.timeouts import AGENT_TIMEOUT
from trainer.resilience.description import process_state
from trainer.resilience.progress import LONGEST_OBSERVATION, StoppedTime
from trainer.resilience.shared_status import SharedStatus

POLL_SECONDS = 1.0


def watch_agent(shared_status: SharedStatus, rank: int) -> None:
    """Start the thread that kills the agent when it has been stopped, or has not looked at its ranks, for too long.

    All processes of the node end with it, so that its backend sees the end and a new attempt can begin. Does nothing
    where there is no agent (`torchrun`).
    """
    if shared_status.agent_pid:
        threading.Thread(target=_watch, args=(shared_status, rank), name="agent-watch", daemon=True).start()


def _watch(shared_status: SharedStatus, rank: int) -> None:
    stopped, idle, looks, before = StoppedTime(), 0.0, -1, time.monotonic()
    pause, pid, longest = threading.Event(), shared_status.agent_pid, AGENT_TIMEOUT.total_seconds()
    while not pause.wait(POLL_SECONDS):
        now = time.monotonic()
        passed, before = now - before, now
        stopped.observe(is_stopped=process_state(pid)[0] in "Tt", seconds=passed)
        newest = shared_status.agent_looks()
        idle = idle + min(passed, LONGEST_OBSERVATION) if newest == looks else 0.0
        looks = newest
        if stopped.is_too_long:
            because = f"it has been stopped (SIGSTOP, or a debugger) for {stopped.seconds:.0f} s"
        elif idle > longest:
            because = f"it has not looked at its ranks for {idle:.0f} s"
        else:
            continue
        _write_to_its_log(pid, f"rank {rank} kills the agent of this node: {because}\n")
        os.kill(pid, signal.SIGKILL)
        return


def _write_to_its_log(pid: int, line: str) -> None:
    """Write to the stderr of the agent, which its backend keeps: what ranks print themselves passes through it."""
    try:
        with Path(f"/proc/{pid}/fd/2").open("a") as log:
            log.write(line)
    except OSError:  # such as a socket, which cannot be opened: the reason is missing in the log
        pass
