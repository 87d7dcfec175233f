"""Starts services in order, keeps them alive, stops them in reverse. One process, one thread, no polling of pids
faster than it must: it wakes when a child ends, a service says something, or a signal arrives."""

import os
import select
import signal
import time
from collections.abc import Callable
from typing import Any

from deploy.local import code_version
from deploy.local.errors import StackError
from deploy.local.folder import DataFolder, read_json, write_json
from deploy.local.notifications import NotifySocket
from deploy.local.processes import ProcessIdentity, kill_group
from deploy.local.service import RunningService, Service, last_lines

PROBE_INTERVAL_SECONDS = 0.05
HOUSEKEEPING_SECONDS = 10.0
SAY_WAITING_SECONDS = 15.0
# A service that reports that it is ready, and does not answer for so long while the stack starts: it is misconfigured.
ANSWERS_WITHIN_SECONDS = 120.0
QUICK_DEATHS = 4  # within the window below: while starting, the stack gives up
QUICK_DEATH_WINDOW_SECONDS = 60.0
FIRST_DELAY_SECONDS = 0.25
MAX_DELAY_SECONDS = 30.0
LOG_BYTES = 10 * 1024 * 1024
ORPHAN_GRACE_SECONDS = 15.0


class Interrupted(Exception):
    """A person or `down` asked for the end."""


class Supervisor:
    """Runs the services of one data folder.

    A service that ends, or shows no sign of life for its time limit, is started again.

    `say` prints a line for the user. With `owner`, the stack stops when that process has ended
    (checked every HOUSEKEEPING_SECONDS).
    """

    def __init__(self, folder: DataFolder, say: Callable[[str], None], owner: ProcessIdentity | None = None) -> None:
        self._owner = owner
        self._folder = folder
        self._say = say
        self._running: list[RunningService] = []
        self._status = "starting"
        self._url = ""
        self._code = code_version.current()
        self._state_is_stale = False
        self._notifications = NotifySocket()
        self.stop_asked = False
        self._wake_reader, self._wake_writer = os.pipe()
        for end in (self._wake_reader, self._wake_writer):
            os.set_blocking(end, False)

    def take_signals(self) -> None:
        """Stop on SIGINT, SIGTERM and SIGHUP; wake when a child ends."""
        signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_stop)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # wakes the wait below

    def _on_stop(self, *_: Any) -> None:
        self.stop_asked = True

    def stop_orphans(self) -> None:
        """End what a killed supervisor left behind, known by pid and start time."""
        state = read_json(self._folder.state) or {}
        for name, entry in reversed(list(state.get("services", {}).items())):
            identity = ProcessIdentity.from_json(entry.get("process"))
            if identity is not None and identity.is_alive():
                self._say(f"{name}: ending process {identity.pid} of an earlier stack")
                identity.stop(int(entry["stop_signal"]), ORPHAN_GRACE_SECONDS)

    def start(self, services: list[Service]) -> None:
        """Start them together and return when all are ready. A StackError names the one that is not.

        A service has as much time as it uses: it is given up only when it shows no sign of life, ends again and again,
        or reports that it is ready and does not answer.
        """
        started = [RunningService(service) for service in services]
        for running in started:
            running.start(self._notifications.address)
            self._running.append(running)
        self._write_first_state()
        began = said_at = time.monotonic()
        waiting = list(started)
        while waiting:
            self._wait(PROBE_INTERVAL_SECONDS)
            for running in list(waiting):
                self._revive(running, starting=True)
                if running.start_again_at is not None or running.has_ended():
                    continue
                if running.check_ready():
                    waiting.remove(running)
                elif not running.check_alive() or running.seconds_without_answer() > ANSWERS_WITHIN_SECONDS:
                    raise self._failure(running)
            if waiting and time.monotonic() - said_at > SAY_WAITING_SECONDS:
                said_at = time.monotonic()
                names = ", ".join(running.service.name for running in waiting)
                self._say(f"waiting for {names}, which are at work ({said_at - began:.0f} s so far)")
        self._update_state()

    def run(self, url: str) -> None:
        """Keep all services alive until asked to stop, or until the owner has ended."""
        self._status, self._url = "ready", url
        self._update_state()
        checked_at = time.monotonic()
        while not self.stop_asked and not self.owner_has_ended():
            before = [(r.identity, r.restarts) for r in self._running]
            for running in self._running:
                self._revive(running, starting=False)
            if time.monotonic() - checked_at >= HOUSEKEEPING_SECONDS:
                self._restart_hung(since=checked_at)
                self._rotate_logs()
                checked_at = time.monotonic()
            if self._state_is_stale or [(r.identity, r.restarts) for r in self._running] != before:
                self._update_state()
            pending = [r.start_again_at for r in self._running if r.start_again_at is not None]
            pause = min([HOUSEKEEPING_SECONDS, *(max(0.0, at - time.monotonic()) for at in pending)])
            if not self.stop_asked:
                self._sleep_until_woken(pause)

    def owner_has_ended(self) -> bool:
        """Return whether there is an owner and its process has ended."""
        return self._owner is not None and not self._owner.is_alive()

    def stop(self) -> None:
        """Stop all in reverse order: programs first, then the stores they write to."""
        self._status = "stopping"
        self._update_state()
        for running in reversed(self._running):
            running.ask_to_stop()
            running.wait_stopped()
        self._running.clear()
        self._status = "stopped"
        self._update_state()

    def _restart_hung(self, since: float) -> None:
        """Kill services without a sign of life, which `_revive` then starts again. `since`: the last such check."""
        was_stopped_itself = time.monotonic() - since > 2 * HOUSEKEEPING_SECONDS
        for running in self._running:
            if running.start_again_at is not None or running.has_ended():
                continue
            if was_stopped_itself:  # such as by SIGSTOP: it has heard nobody
                running.heard_at = time.monotonic()
            running.check_ready()
            if not running.check_alive():
                seconds = running.service.hung_after_seconds
                self._say(f"{running.service.name}: no sign of life for {seconds:.0f} s; killing it")
                running.kill()

    def _revive(self, running: RunningService, *, starting: bool) -> None:
        """Start a dead service again, later each time; while starting, give up after a few quick deaths."""
        now = time.monotonic()
        if running.start_again_at is not None:
            if now >= running.start_again_at:
                self._start_again(running)
            return
        if not running.has_ended():
            return
        assert running.process is not None
        kill_group(running.process.pid)  # children it left would hold its port or its files
        self._delay_start(running)
        if starting and len(running.deaths) >= QUICK_DEATHS:
            raise self._failure(running)
        self._say(f"{running.service.name}: {running.how_it_ended()}; starting it again")
        if len(running.deaths) == QUICK_DEATHS:
            self._say(f"{running.service.name} keeps ending. Its log, {running.service.log}, ends:")
            self._say(last_lines(running.service.log))

    def _start_again(self, running: RunningService) -> None:
        """Start a service again. What the machine refuses, such as a log on a full disk, is tried again later."""
        try:
            running.start(self._notifications.address)
        except OSError as error:
            self._delay_start(running)
            self._say(f"{running.service.name}: cannot be started: {error}; trying again")
        else:
            running.restarts += 1

    def _delay_start(self, running: RunningService) -> None:
        now = time.monotonic()
        running.deaths = [at for at in running.deaths if now - at < QUICK_DEATH_WINDOW_SECONDS] + [now]
        running.start_again_at = now + min(FIRST_DELAY_SECONDS * 2 ** (len(running.deaths) - 1), MAX_DELAY_SECONDS)

    def _failure(self, running: RunningService) -> StackError:
        service = running.service
        return StackError(
            f"{service.name} does not start ({running.how_it_ended()}); its log is {service.log}",
            last_lines(service.log),
        )

    def _wait(self, seconds: float) -> None:
        if not self.stop_asked:
            self._sleep_until_woken(seconds)
        if self.stop_asked:
            raise Interrupted

    def _sleep_until_woken(self, seconds: float) -> None:
        awake = select.select([self._wake_reader, self._notifications.fileno()], [], [], seconds)[0]
        if self._wake_reader in awake:
            os.read(self._wake_reader, 4096)
        if self._notifications.fileno() in awake:
            by_pid = {running.identity.pid: running for running in self._running if running.identity}
            for pid, states in self._notifications.read():
                if pid in by_pid:
                    by_pid[pid].take_notification(states)

    def _rotate_logs(self) -> None:
        """Keep one older copy. The services append, so truncating in place loses at most a line."""
        for path in self._folder.logs.glob("*.log"):
            if path.stat().st_size > LOG_BYTES:
                older = path.with_suffix(".log.1")
                try:
                    older.write_bytes(path.read_bytes())
                except OSError as error:  # a full disk: the space is needed more than the older lines
                    older.unlink(missing_ok=True)
                    self._say(f"{path} was emptied without a copy: {error}")
                os.truncate(path, 0)

    def _write_first_state(self) -> None:
        """Write the state that a later supervisor needs to find these processes. Raises StackError if it cannot."""
        try:
            self._write_state()
        except OSError as error:
            remedy = "make room on that disk, or set ATHANOR_DATA_DIR to another folder"
            raise StackError(f"cannot write {self._folder.state} ({error}): {remedy}") from error

    def _update_state(self) -> None:
        """Write the state. If the disk is full or read-only, the services run on, and it is tried again."""
        try:
            self._write_state()
        except OSError as error:
            if not self._state_is_stale:
                self._say(f"cannot write {self._folder.state}: {error}; the services run on")
            self._state_is_stale = True
        else:
            self._state_is_stale = False

    def _write_state(self) -> None:
        own = ProcessIdentity.of(os.getpid())
        assert own is not None
        write_json(
            self._folder.state,
            {
                "supervisor": own.to_json(),
                "status": self._status,
                "url": self._url,
                "code": self._code,
                "services": {
                    r.service.name: {
                        "process": r.identity.to_json() if r.identity else None,
                        "stop_signal": int(r.service.stop_signal),
                        "restarts": r.restarts,
                    }
                    for r in self._running
                },
            },
        )
