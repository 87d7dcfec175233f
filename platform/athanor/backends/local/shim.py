"""The process that runs one attempt on this machine: `shim.py FOLDER KILL_AFTER_SECONDS COMMAND...`

A plain script, standard library only, in its own session, so that it outlives its parent. It holds the folder's lock as
long as it lives, starts the command once in a process group of its own, forwards requests to stop, and records how it
ended.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import folder

PR_SET_PDEATHSIG = 1


def main() -> int:
    """Lock the folder, and detach. Return 0 when the command has started, or if another shim is alive; else 1."""
    place, kill_after, command = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
    lock = os.open(place / folder.LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0  # another shim is alive
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        said = os.read(reader, 4096).decode()  # until the child has started the command, or could not
        if said:
            print(said, file=sys.stderr)  # noqa: T201 - a script's output to its caller
        return 1 if said else 0
    os.close(reader)
    os.setsid()
    run_attempt(place, kill_after, command, writer)
    return 0


def run_attempt(place: Path, kill_after: float, command: list[str], ready: int) -> None:
    """Run the command unless the attempt has started before, and record its end. `ready` reports the start."""
    wake_reader, wake_writer = os.pipe()
    os.set_blocking(wake_writer, False)
    os.set_blocking(wake_reader, False)
    signal.set_wakeup_fd(wake_writer)
    for number in (signal.SIGUSR1, signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        started = os.open(place / folder.STARTED, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return  # it has run before: never twice
    os.write(started, f"{os.getpid()} {folder.start_time(os.getpid())}\n".encode())
    os.fsync(started)
    log = os.open(place / folder.LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        agent = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            preexec_fn=_die_with_shim,
        )  # fmt: skip
    except OSError as error:
        _write_end(place, 127, f"cannot start {command[0]}: {error}")
        return
    (place / "agent").write_text(f"{agent.pid} {folder.start_time(agent.pid)}\n")
    _detach_output(log)
    os.close(ready)
    status = _wait(agent, place, kill_after, wake_reader)
    _kill_group(agent.pid)
    detail = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
    _write_end(place, status, detail)


def _wait(agent: "subprocess.Popen[bytes]", place: Path, kill_after: float, wake: int) -> int:
    """Wait until the agent ends. Forward `stop` as SIGTERM, and kill after `kill` or `kill_after` seconds."""
    stop_at: float | None = None
    while True:
        status = agent.poll()
        if status is not None:
            return status
        if stop_at is None and (place / folder.STOP).exists():
            agent.send_signal(signal.SIGTERM)
            stop_at = time.monotonic() + kill_after
        if (place / folder.KILL).exists() or (stop_at is not None and time.monotonic() >= stop_at):
            _kill_group(agent.pid)
        timeout = None if stop_at is None else max(stop_at - time.monotonic(), 0.1)
        select.select([wake], [], [], timeout)
        with contextlib.suppress(BlockingIOError):
            os.read(wake, 4096)


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _write_end(place: Path, status: int, detail: str) -> None:
    draft = place / (folder.EXIT + ".part")
    with draft.open("w") as file:
        json.dump({"exit_status": status, "detail": detail, "at": time.time()}, file)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(place / folder.EXIT)


def _die_with_shim() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _detach_output(log: int) -> None:
    """Replace the inherited standard streams, so that the caller does not wait for this process."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)


if __name__ == "__main__":
    sys.exit(main())
