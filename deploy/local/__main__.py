"""`python -m deploy.local up|down|status|logs|env|unit`."""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from deploy.local import code_version, environment, systemd
from deploy.local.environment import REPOSITORY
from deploy.local.errors import StackError
from deploy.local.folder import DataFolder, read_json
from deploy.local.jobs import job_processes, kill_jobs
from deploy.local.processes import ProcessIdentity, proportional_memory_bytes
from deploy.local.service import last_lines
from deploy.local.stack import Stack
from deploy.local.supervisor import Interrupted, Supervisor

PROGRESS = (b"starting", b"waiting for", b"database:")  # beginnings of lines that a person who waits wants to see
STOP_SECONDS = 90.0
POLL_SECONDS = 0.1


def say(line: str) -> None:
    """Print a line without buffering."""
    print(line, flush=True)


def up(folder: DataFolder, *, only_stores: bool, owner: ProcessIdentity | None) -> None:
    """Run the stack in the foreground until Ctrl-C, SIGTERM, or the end of `owner`."""
    folder.open()
    with folder.owned():
        supervisor = Supervisor(folder, say, owner)
        supervisor.take_signals()
        supervisor.stop_orphans()
        try:
            stack = Stack(folder)
            stack.initialise()
            say("starting the stores")
            supervisor.start(stack.stores())
            stack.ensure_database()
            if only_stores:
                say("ready: the stores; `python -m deploy.local env` prints their addresses")
            else:
                stack.add_master_key()
                stack.prepare(say)
                say("starting web, worker and beat")
                supervisor.start(stack.platform())
                stack.check_credentials()
                say(f"ready: {stack.url}  (user and password in {folder.credentials})")
            supervisor.run(stack.url)
        except Interrupted:
            say("interrupted")
        except StackError:
            if not supervisor.stop_asked:
                raise
            say("interrupted")  # Ctrl-C reaches the program that was running at the moment, too
        finally:
            say("stopping")
            supervisor.stop()
            if supervisor.owner_has_ended():
                kill_jobs(folder)
    say(f"stopped; data stays in {folder.root}")


def up_in_background(folder: DataFolder, *, only_stores: bool, while_pid: int | None) -> None:
    """Return once the stack is ready. One that runs already is left as it is, unless its code has changed."""
    folder.open()
    running = _live_state(folder)
    if running is not None and running["status"] == "ready" and running["code"] != code_version.current():
        say("the code has changed since the stack was started: starting it again")
        down(folder)
    log = folder.logs / "supervisor.log"
    child: subprocess.Popen[bytes] | None = None
    if not folder.is_owned():
        log.unlink(missing_ok=True)
        with log.open("ab") as output:
            child = subprocess.Popen(
                [
                    sys.executable, "-m", "deploy.local", "up", *(["--stores"] if only_stores else []),
                    *([f"--while-pid={while_pid}"] if while_pid else []),
                ],
                cwd=REPOSITORY,
                env={**os.environ, "ATHANOR_DATA_DIR": str(folder.root)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
    printed = 0
    while True:  # the supervisor gives up by itself, when a service makes no progress
        printed = _print_progress(log, printed)
        state = _live_state(folder)
        if state is not None and state["status"] == "ready":
            say(f"ready: {state['url']}")
            return
        if child is not None:
            try:
                child.wait(POLL_SECONDS)
            except subprocess.TimeoutExpired:
                continue
            raise StackError("the stack did not start", last_lines(log, 40))
        if not folder.is_owned():
            raise StackError("the stack that ran here has just stopped: run the same command again")
        time.sleep(POLL_SECONDS)


def _print_progress(log: Path, start: int) -> int:
    """Print what the supervisor has written to its log since `start`, about services it waits for. Return the end."""
    if not log.exists():
        return start
    with log.open("rb") as handle:
        handle.seek(start)
        *lines, rest = handle.read().split(b"\n")
        for line in lines:
            if line.startswith(PROGRESS):
                say(line.decode(errors="replace"))
        return handle.tell() - len(rest)


def down(folder: DataFolder) -> None:
    """Stop the stack, or what a killed one left running. The data stays."""
    state = _live_state(folder)
    supervisor = ProcessIdentity.from_json(state["supervisor"]) if state else None
    if supervisor is None:
        say(f"no stack runs on {folder.root}")
        if folder.run.exists():
            with folder.owned():
                Supervisor(folder, say).stop_orphans()
        return
    supervisor.stop(signal.SIGTERM, STOP_SECONDS)
    if folder.is_owned():
        raise StackError(f"process {supervisor.pid} still holds {folder.root}: end it with kill -9")
    say(f"stopped; data stays in {folder.root}")
    _report_jobs(folder)


def _report_jobs(folder: DataFolder) -> None:
    """Say how many processes of jobs still run: a restart of the platform fails no job."""
    count = len(job_processes(folder))
    if count:
        say(f"{count} processes of running jobs continue without the platform; the next `up` finds them again")


def show_environment(folder: DataFolder) -> None:
    """Lines for a shell: eval "$(python -m deploy.local env)" and manage.py works on this stack's data."""
    if _live_state(folder) is None:
        raise StackError(f"no stack runs on {folder.root}: start one with `make up`")
    known = environment.of_running(folder)
    for name, value in sorted(known.items()):
        say(f"export {name}={shlex.quote(value)}")


def status(folder: DataFolder, *, as_json: bool) -> None:
    """Print what runs, its address, memory and restarts."""
    state = _live_state(folder)
    report: dict[str, Any] = {"data_dir": str(folder.root), "status": "stopped", "services": {}}
    if state is not None:
        report.update(status=state["status"], url=state["url"])
        entries = {"supervisor": {"process": state["supervisor"], "restarts": 0}, **state["services"]}
        for name, entry in entries.items():
            identity = ProcessIdentity.from_json(entry["process"])
            process = identity.process() if identity else None
            memory = 0
            if process is not None:
                memory = proportional_memory_bytes(process, with_children=name != "supervisor")
            report["services"][name] = {
                "pid": identity.pid if identity else None,
                "alive": process is not None,
                "restarts": entry["restarts"],
                "memory_bytes": memory,
            }
        report["memory_bytes"] = sum(entry["memory_bytes"] for entry in report["services"].values())
    if as_json:
        say(json.dumps(report, indent=2))
        return
    say(f"{report['status']}  {report.get('url', '')}  data in {report['data_dir']}")
    for name, entry in report["services"].items():
        alive = "alive" if entry["alive"] else "down"
        memory = entry["memory_bytes"] / 1e6
        say(f"  {name:<13} {alive:<6} pid {entry['pid'] or '-':<8} restarts {entry['restarts']:<3} {memory:6.0f} MB")
    if report["services"]:
        say(f"  {'all':<13} {report['memory_bytes'] / 1e6:38.0f} MB")


def logs(folder: DataFolder, service: str | None, count: int) -> None:
    """Print the last lines of each service's log, or of one service."""
    found = sorted(folder.logs.glob("*.log")) if folder.logs.exists() else []
    names = [path.stem for path in found]
    if service is not None and service not in names:
        raise StackError(f"no log of {service!r} in {folder.logs}; there are: {', '.join(names) or 'none'}")
    for path in found:
        if service in (None, path.stem):
            say(f"== {path}")
            say(last_lines(path, count))


def _live_state(folder: DataFolder) -> dict[str, Any] | None:
    state: dict[str, Any] | None = read_json(folder.state)
    identity = ProcessIdentity.from_json(state["supervisor"]) if state else None
    return state if identity is not None and identity.is_alive() else None


def _identity(pid: int) -> ProcessIdentity:
    """Return the identity of a process; of one that has ended already, an identity that is not alive."""
    return ProcessIdentity.of(pid) or ProcessIdentity(pid, -1)


def main() -> int:
    """Run the command named by the arguments. Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m deploy.local", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    start = commands.add_parser("up", help="start the stack and stay with it")
    start.add_argument("--stores", action="store_true", help="only database, broker and object store")
    start.add_argument("--background", action="store_true", help="return when it is ready")
    start.add_argument("--while-pid", type=int, help="stop, and end its jobs, when this process has ended")
    commands.add_parser("down", help="stop it; the data stays")
    commands.add_parser("status").add_argument("--json", action="store_true")
    commands.add_parser("env", help="print the environment of the server's programs, for a shell")
    commands.add_parser("unit", help="print a systemd user unit that starts the stack with the machine")
    show = commands.add_parser("logs", help="the last lines of each service's log")
    show.add_argument("service", nargs="?")
    show.add_argument("-n", "--lines", type=int, default=20)
    options = parser.parse_args()
    folder = DataFolder.from_environment()
    try:
        if options.command == "up" and options.background:
            up_in_background(folder, only_stores=options.stores, while_pid=options.while_pid)
        elif options.command == "up":
            owner = _identity(options.while_pid) if options.while_pid else None
            up(folder, only_stores=options.stores, owner=owner)
        elif options.command == "env":
            show_environment(folder)
        elif options.command == "unit":
            print(systemd.unit(folder), end="")
        elif options.command == "down":
            down(folder)
        elif options.command == "status":
            status(folder, as_json=options.json)
        else:
            logs(folder, options.service, options.lines)
    except StackError as error:
        if error.log:
            print(error.log, file=sys.stderr)
        print(f"athanor: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
