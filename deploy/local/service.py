"""One supervised program: how it is started, when it is ready, how it is stopped."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from deploy.local.processes import ProcessIdentity, cpu_seconds, kill_group

LAUNCHER = Path(__file__).with_name("launch.py")
LOG_TAIL_LINES = 20
LOG_TAIL_BYTES = 64 * 1024


@dataclass(frozen=True)
class Service:
    """What never changes while the stack runs.

    `answers` asks the service whether it works, within a few seconds. `notifies`: the service itself reports that it is
    ready and, again and again, that it is alive (sd_notify(3)). A service has at least one of the two; one that does
    not answer, or says nothing, for `hung_after_seconds` is killed and started again.
    """

    name: str
    command: list[str]
    environment: dict[str, str]
    working_folder: Path
    log: Path
    answers: Callable[[], bool] | None = None
    notifies: bool = False
    hung_after_seconds: float = 30.0
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
    is_ready: bool = False  # since its last start
    has_said_ready: bool = False  # likewise
    said_ready_at: float = 0.0  # monotonic seconds
    heard_at: float = 0.0  # monotonic seconds of its newest sign of life, or of its start
    _cpu_seconds: float = 0.0
    _looked_at: float = 0.0

    def start(self, notify_address: str) -> None:
        """Start the process. It sends its notifications to `notify_address`."""
        service = self.service
        notifying = {"NOTIFY_SOCKET": notify_address, "WATCHDOG_USEC": str(int(service.hung_after_seconds * 1e6))}
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
                env={**service.environment, **(notifying if service.notifies else {})},
                cwd=service.working_folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=service.descriptors,
            )
        self.identity = ProcessIdentity.of(self.process.pid)
        self.start_again_at = None
        self.is_ready, self.has_said_ready = False, False
        self.heard_at = time.monotonic()

    def take_notification(self, states: list[str]) -> None:
        """Note what the process has said about itself."""
        self.heard_at = time.monotonic()
        if "READY=1" in states and not self.has_said_ready:
            self.has_said_ready, self.said_ready_at = True, self.heard_at

    def check_ready(self) -> bool:
        """Return whether it is ready, asking it if it was not yet."""
        if not self.is_ready:
            service = self.service
            has_said = self.has_said_ready or not service.notifies
            self.is_ready = has_said and (service.answers is None or service.answers())
            if self.is_ready:
                self.heard_at = time.monotonic()
        return self.is_ready

    def check_alive(self) -> bool:
        """Return False if it has neither answered nor said anything for longer than its limit.

        While it starts, the use of CPU time counts as a sign of life, so that a busy machine has all the time it needs.
        """
        service = self.service
        if service.notifies:
            is_heard = not self.has_said_ready and self._has_used_cpu()  # else `take_notification` notes it
        elif self.is_ready:
            is_heard = service.answers is None or service.answers()
        else:
            is_heard = self._has_used_cpu()
        if is_heard:
            self.heard_at = time.monotonic()
        return time.monotonic() - self.heard_at <= service.hung_after_seconds

    def _has_used_cpu(self) -> bool:
        """Return whether its processes have used CPU time since the last look, at most one second ago."""
        now = time.monotonic()
        if now - self._looked_at < 1.0:
            return False
        before, self._cpu_seconds, self._looked_at = self._cpu_seconds, cpu_seconds(self.identity), now
        return self._cpu_seconds != before

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

    def seconds_without_answer(self) -> float:
        """Return for how long it has said that it is ready and was not: 0 while it has not said so."""
        return time.monotonic() - self.said_ready_at if self.has_said_ready and not self.is_ready else 0.0

    def kill(self) -> None:
        """Kill it, and what it has started in its session."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        kill_group(self.process.pid)

    def how_it_ended(self) -> str:
        """Return how the process ended, for users."""
        assert self.process is not None
        code = self.process.poll()
        if code is None:
            return "it runs, and is not ready"
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"


def last_lines(log: Path, count: int = LOG_TAIL_LINES) -> str:
    """Return the last lines of a log, empty if there is none."""
    if not log.exists():
        return ""
    with log.open("rb") as handle:
        handle.seek(0, os.SEEK_END)
        handle.seek(max(0, handle.tell() - LOG_TAIL_BYTES))
        return "\n".join(handle.read().decode(errors="replace").splitlines()[-count:])
