"""A stack of one's own, seen from outside: what the end-to-end tests and the benchmarks drive and break."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from deploy.local.environment import REPOSITORY
from deploy.local.errors import StackError
from deploy.local.folder import DataFolder, read_json
from deploy.local.jobs import job_processes
from deploy.local.processes import ProcessIdentity

POLL_SECONDS = 0.05
# The environment may name a stack or server of the user; it must stay untouched.
FOREIGN = ("DATABASE_URL", "CELERY_BROKER_URL")


class StackHandle:
    """Starts, breaks and ends one stack on `data_dir` by the same commands a person has."""

    def __init__(self, data_dir: Path, settings: dict[str, str] | None = None) -> None:
        self.folder = DataFolder(data_dir)
        self.data_dir = data_dir
        outside = {n: v for n, v in os.environ.items() if not n.startswith("ATHANOR_") and n not in FOREIGN}
        self.environment = {**outside, "ATHANOR_DATA_DIR": str(data_dir), **(settings or {})}

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `python -m deploy.local` with these arguments on this stack."""
        return subprocess.run(
            [sys.executable, "-m", "deploy.local", *arguments],
            cwd=REPOSITORY,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def up(self, *, only_stores: bool = False) -> None:
        """Start it. It ends by itself, with its jobs, when the calling process has ended without stopping it."""
        result = self.run("up", "--background", f"--while-pid={os.getpid()}", *(["--stores"] if only_stores else []))
        if result.returncode:
            raise StackError("the private stack did not start", result.stdout + result.stderr)

    def down(self) -> None:
        """Stop the stack. Raises StackError if it does not stop."""
        result = self.run("down")
        if result.returncode:
            raise StackError("the private stack did not stop", result.stdout + result.stderr)

    @property
    def state(self) -> dict[str, Any]:
        """Return the state that the supervisor wrote. Raises StackError if there is none."""
        state: dict[str, Any] | None = read_json(self.folder.state)
        if state is None:
            raise StackError(f"no stack has ever run on {self.data_dir}")
        return state

    @property
    def credentials(self) -> dict[str, Any]:
        """username, password, team, token, url."""
        found: dict[str, Any] = read_json(self.folder.credentials)
        return found

    def identity(self, service: str) -> ProcessIdentity:
        """Return the process of a service, or of `supervisor`."""
        entry = self.state["supervisor"] if service == "supervisor" else self.state["services"][service]["process"]
        identity = ProcessIdentity.from_json(entry)
        if identity is None:
            raise StackError(f"{service} has no process")
        return identity

    def pid(self, service: str) -> int:
        """Return the process id of a service."""
        return self.identity(service).pid

    def kill(self, service: str) -> None:
        """SIGKILL to a service (`web`: all its processes) and all it started in its session: as hard as can be."""
        for name in self.state["services"]:
            if name == service or name.startswith(f"{service}-"):
                os.killpg(self.pid(name), signal.SIGKILL)

    def suspend(self, service: str) -> None:
        """Send SIGSTOP to a service."""
        os.kill(self.pid(service), signal.SIGSTOP)

    def resume(self, service: str) -> None:
        """Send SIGCONT to a service."""
        os.kill(self.pid(service), signal.SIGCONT)

    def kill_everything(self) -> None:
        """Supervisor and services at one stroke, as a power cut would; trainers included."""
        names = ["supervisor", *self.state["services"]]
        victims = [process for name in names if (process := self.identity(name).process())]
        victims += [child for victim in victims for child in victim.children(recursive=True)]
        victims += self.job_processes()
        for victim in victims:
            try:
                victim.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(victims, timeout=10)

    def job_processes(self) -> list[psutil.Process]:
        """Return the agents and trainers of this stack's local backend."""
        return job_processes(self.folder)

    def wait_for_restart(self, service: str, before: ProcessIdentity, within_seconds: float = 60.0) -> None:
        """Wait until a service has another process than `before`."""
        wait_until(
            lambda: self.identity(service) != before and self.identity(service).is_alive(),
            f"{service} is started again",
            within_seconds,
        )


def wait_until(holds: Callable[[], Any], what: str, within_seconds: float = 60.0) -> None:
    """Ask until it holds. AssertionError names what did not come about."""
    deadline = time.monotonic() + within_seconds
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_seconds:.0f} s: {what}")
        time.sleep(POLL_SECONDS)
