"""One supervised program: how it is started, when it is ready, how it is stopped."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from deploy.local.processes import ProcessIdentity, kill_group

LAUNCHER = Path(__file__).with_name("launch.py")
LOG_TAIL_LINES = 20
LOG_TAIL_BYTES = 64 * 1024


@dataclass(frozen=True)
class Service:
    """What never changes while the stack runs. `ready` is asked again and again and must not block for long."""

    name: str
    command: list[str]
    environment: dict[str, str]
    working_folder: Path
    log: Path
    ready: Callable[[], bool]
    ready_within_seconds: float = 60.0
    stop_signal: int = signal.SIGTERM
    grace_seconds: float = 15.0
    user: str | None = None
    descriptors: tuple[int, ...] = ()  # open files it inherits from the supervisor
    before_start: Callable[[], None] | None = None


@dataclass
class RunningService:
    """A service and its process of the moment."""

    service: Service
    process: subprocess.Popen[bytes] | None = None
    identity: ProcessIdentity | None = None
    restarts: int = 0
    deaths: list[float] = field(default_factory=list)  # monotonic seconds, the newest last
    start_again_at: float | None = None  # monotonic seconds; set while it waits for its restart

    def start(self) -> None:
        """Start the process."""
        service = self.service
        if service.before_start is not None:
            service.before_start()
        command = [
            # The plain interpreter: the virtual environment's site hooks would triple the launcher's start.
            sys.executable,
            "-I",
            "-S",
            str(LAUNCHER),
            f"--parent={os.getpid()}",
            f"--death-signal={int(service.stop_signal)}",
        ]
        if service.user is not None:
            command.append(f"--user={service.user}")
        with service.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--", *service.command],
                env=service.environment,
                cwd=service.working_folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=service.descriptors,
            )
        self.identity = ProcessIdentity.of(self.process.pid)
        self.start_again_at = None

    def has_ended(self) -> bool:
        """Return whether the process was started and has ended."""
        return self.process is not None and self.process.poll() is not None

    def ask_to_stop(self) -> None:
        """Send the stop signal."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(self.service.stop_signal)
            self.process.send_signal(signal.SIGCONT)  # one that was suspended could not hear it

    def wait_stopped(self) -> None:
        """Wait for the end, and kill the process group after the grace time."""
        if self.process is None:
            return
        try:
            self.process.wait(self.service.grace_seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        kill_group(self.process.pid)

    def how_it_ended(self) -> str:
        """Return how the process ended, for users."""
        assert self.process is not None
        code = self.process.poll()
        if code is None:
            return "not ready in time"
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"


def last_lines(log: Path, count: int = LOG_TAIL_LINES) -> str:
    """Return the last lines of a log, empty if there is none."""
    if not log.exists():
        return ""
    with log.open("rb") as handle:
        handle.seek(0, os.SEEK_END)
        handle.seek(max(0, handle.tell() - LOG_TAIL_BYTES))
        return "\n".join(handle.read().decode(errors="replace").splitlines()[-count:])
