"""Shell programs on a host with Slurm's commands: this one, or one that is reached by ssh.

A program and its environment are sent over standard input: neither is ever on a command line, which other users see.
"""

import os
import shlex
import subprocess
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from athanor.backends.base import BackendUnavailable
from athanor.backends.slurm.config import LocalTransport, SshTransport

CALL_SECONDS = 14.0  # a call of a backend may take 15
MESSAGE_LETTERS = 2000
# All that commands get of the workers' own environment.
INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ")
SSH_FAILED = 255


class Deadline:
    """The remaining time of one call of the backend, shared by all its requests."""

    def __init__(self, seconds: float = CALL_SECONDS) -> None:
        self._end = time.monotonic() + seconds

    @property
    def seconds(self) -> float:
        """Return the remaining seconds. Raise BackendUnavailable if there are none."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise BackendUnavailable("the cluster did not answer in time")
        return left


class CommandFailed(Exception):
    """A program ended with a status of its own; the cluster may or may not be available."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Transport(ABC):
    """Runs shell programs. Raises CommandFailed for a status other than 0, BackendUnavailable without one."""

    @abstractmethod
    def command(self) -> list[str]:
        """Return the command that takes a shell program on its standard input."""

    @abstractmethod
    def environment(self) -> dict[str, str]:
        """Return the environment of that command."""

    def run(self, program: str, deadline: Deadline) -> bytes:
        """Run a program and return its output."""
        with self.lines(program, deadline) as lines:
            return b"".join(lines)

    @contextmanager
    def lines(self, program: str, deadline: Deadline) -> Iterator[Iterator[bytes]]:
        """Yield the lines of the output as they arrive, so that a long listing needs constant memory."""
        with tempfile.TemporaryFile() as errors, tempfile.TemporaryFile() as text:
            text.write(program.encode())
            text.seek(0)
            try:
                process = subprocess.Popen(
                    self.command(), stdin=text, stdout=subprocess.PIPE, stderr=errors, env=self.environment(),
                    start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                raise BackendUnavailable(f"cannot start {self.command()[0]}: {error}") from error
            late = threading.Event()
            watch = threading.Timer(deadline.seconds, _give_up, (process, late))
            watch.start()
            try:
                assert process.stdout is not None
                with process.stdout:
                    yield process.stdout
                status = process.wait()
            finally:
                watch.cancel()
                if process.poll() is None:
                    _end(process)
            if late.is_set():
                raise BackendUnavailable("the cluster's commands did not answer in time")
            if status != 0:
                errors.seek(0)
                self.fail(status, errors.read().decode(errors="replace").strip()[-MESSAGE_LETTERS:])

    def fail(self, status: int, message: str) -> None:
        """Raise the error for a status other than 0."""
        raise CommandFailed(status, message or f"exit status {status}")


class LocalShell(Transport):
    """A shell of this host."""

    def command(self) -> list[str]:
        """Return the command of the shell."""
        return ["/bin/sh", "-s"]

    def environment(self) -> dict[str, str]:
        """Return the inherited variables."""
        return {name: os.environ[name] for name in INHERITED if name in os.environ}


class SshShell(Transport):
    """A shell of another host. All workers of this machine share one connection, which stays open for a while."""

    def __init__(self, config: SshTransport) -> None:
        self._config = config

    def command(self) -> list[str]:
        """Return the ssh command with its options."""
        config = self._config
        options = {
            "BatchMode": "yes",
            "StrictHostKeyChecking": "yes",
            "UserKnownHostsFile": config.known_hosts_file,
            "GlobalKnownHostsFile": "/dev/null",
            "IdentityFile": config.identity_file,
            "IdentitiesOnly": "yes",
            "IdentityAgent": "none",
            "ForwardAgent": "no",
            "ConnectTimeout": "8",
            "ServerAliveInterval": "4",
            "ServerAliveCountMax": "3",
            "ControlMaster": "auto",
            "ControlPath": f"{_sockets()}/%C",
            "ControlPersist": "120",
            "LogLevel": "ERROR",
        }
        given = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
        # The account's own start-up files may print, ask, or set options of sbatch.
        remote = 'exec env -i PATH="$PATH" HOME="$HOME" USER="$USER" LOGNAME="$LOGNAME" /bin/sh -s'
        return ["ssh", "-F", "none", "-T", *given, "-p", str(config.port), "-l", config.user, "--", config.host, remote]

    def environment(self) -> dict[str, str]:
        """Return the variables that ssh needs."""
        return {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}

    def fail(self, status: int, message: str) -> None:
        """Raise BackendUnavailable if ssh itself failed."""
        if status == SSH_FAILED:
            raise BackendUnavailable(f"ssh to {self._config.host}: {message or 'the connection was lost'}")
        super().fail(status, message)


def open_transport(config: LocalTransport | SshTransport) -> Transport:
    """Return the transport of a configuration."""
    return SshShell(config) if isinstance(config, SshTransport) else LocalShell()


def exports(variables: Mapping[str, str]) -> str:
    """Return the export statements of these variables."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())


def document(text: str, mark: str) -> str:
    """Return a here-document that passes the text on unchanged.

    Raise ValueError if `mark` is a line of the text.
    """
    if mark in text.splitlines():
        raise ValueError(f"the text has a line {mark!r} of its own")
    ended = text if text.endswith("\n") else text + "\n"
    return f"<<'{mark}'\n{ended}{mark}\n"


def _sockets() -> Path:
    """Return the private folder of shared connections. Its path is short: a socket's path has some 100 bytes."""
    folder = Path(tempfile.gettempdir()) / f"athanor-ssh-{os.geteuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.geteuid() or folder.is_symlink():
        raise BackendUnavailable(f"{folder} belongs to somebody else: remove it")
    folder.chmod(0o700)
    return folder


def _give_up(process: "subprocess.Popen[bytes]", late: threading.Event) -> None:
    late.set()
    _end(process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Kill the shell and all that it started: they are a process group of their own."""
    try:
        os.killpg(process.pid, 9)
    except ProcessLookupError:
        process.kill()
    process.wait()
