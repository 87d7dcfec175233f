"""One of the platform's programs in the foreground, as a container runs it.

`python -m athanor.config.program web`, `worker`, `beat`, or `manage COMMAND` for a command of manage.py. `healthy`
exits with 0 while the program of the same container reports that it is alive, which is for health checks: web, worker
and beat report from their event loops (core/service_notify.py), so that one that hangs is noticed.
"""

import argparse
import logging
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from athanor.core.service_notify import ALIVE

T = TypeVar("T")
FOLDER = Path(tempfile.gettempdir()) / "athanor-program"
ALIVE_FILE = FOLDER / "alive"
HUNG_AFTER_SECONDS = 60.0
WORKER_THREADS = 4
DEFAULT_ADDRESS = "0.0.0.0:8700"


def main() -> None:
    """Run the program that the arguments name, until it ends."""
    parser = argparse.ArgumentParser(prog="athanor.config.program", description=__doc__)
    programs = parser.add_subparsers(dest="program", required=True)
    web = programs.add_parser("web", help="serve the API and the dashboard")
    web.add_argument("--listen", default=DEFAULT_ADDRESS, metavar="HOST:PORT")
    worker = programs.add_parser("worker", help="run the background work")
    worker.add_argument("--threads", type=int, default=WORKER_THREADS)
    beat = programs.add_parser("beat", help="trigger the background work; one is enough")
    for program in (web, worker, beat):
        program.add_argument(
            "--await-migrations", type=float, default=0.0, metavar="SECONDS",
            help="wait until the database answers and has all migrations of this code, which `manage prepare` applies",
        )  # fmt: skip
    for program in (worker, beat):
        program.add_argument("--metrics", metavar="HOST:PORT", help="serve the metrics of this process there")
    manage = programs.add_parser("manage", help="run a command of manage.py, such as migrate", add_help=False)
    manage.add_argument("arguments", nargs=argparse.REMAINDER)
    healthy = programs.add_parser("healthy", help="exit with 0 if the program of this container is alive")
    healthy.add_argument("--seconds", type=float, default=HUNG_AFTER_SECONDS)
    chosen = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "athanor.config.settings")
    logging.captureWarnings(True)  # as log lines, in the format of the others
    if getattr(chosen, "await_migrations", 0.0):
        await_migrations(chosen.await_migrations)
    if getattr(chosen, "metrics", None):
        serve_metrics(chosen.metrics)
    match chosen.program:
        case "web":
            from athanor.config import server  # noqa: PLC0415 - not for health checks, which run often

            _record_signs_of_life()
            server.serve(_at("--listen", chosen.listen, server.listen))
        case "worker":
            _record_signs_of_life()
            _celery("worker", "--loglevel=INFO", "--pool=threads", f"--concurrency={chosen.threads}",
                    "--without-gossip", "--without-mingle")  # fmt: skip
        case "beat":
            _record_signs_of_life()
            _celery("beat", "--loglevel=WARNING", "--scheduler=workers.beat:MemoryScheduler", "--pidfile=")
        case "manage":
            from django.core.management import execute_from_command_line  # noqa: PLC0415 - likewise

            sys.argv = ["manage.py", *chosen.arguments]  # settings/security.py reads which command it is
            execute_from_command_line(sys.argv)
        case "healthy":
            sys.exit(0 if seconds_since_alive() < chosen.seconds else 1)


def serve_metrics(address: str) -> None:
    """Serve the metrics of this process in a thread, without a token. Ends the program if the address is not free."""
    import django  # noqa: PLC0415 - not for health checks, which run often

    django.setup()
    from athanor.monitoring import exposition  # noqa: PLC0415 - after the set-up

    _at("--metrics", address, exposition.serve)


def _at(option: str, address: str, listen: Callable[[str, int], T]) -> T:
    """Return what `listen` makes of the host and port of an address. Ends the program if it cannot listen there."""
    host, _, port = address.rpartition(":")
    try:
        return listen(host, int(port))
    except (OSError, ValueError, OverflowError) as error:
        sys.exit(f"athanor: {option} {address}: {error}: give HOST:PORT of a free port")


def await_migrations(seconds: float) -> None:
    """Wait until all migrations of this code are applied. Ends the program if they are not within `seconds`."""
    import django  # noqa: PLC0415 - not for health checks, which run often

    django.setup()
    from django.db import DatabaseError, connection  # noqa: PLC0415 - after the set-up
    from django.db.migrations.executor import MigrationExecutor  # noqa: PLC0415 - likewise

    deadline = time.monotonic() + seconds
    while True:
        try:
            executor = MigrationExecutor(connection)
            missing = len(executor.migration_plan(executor.loader.graph.leaf_nodes()))
            if not missing:
                connection.close()
                return
            problem = f"{missing} migrations are not applied: run `manage prepare` with the same version"
        except DatabaseError as error:  # it does not answer yet, or this role may not read it yet
            problem = f"the database does not answer: {error}"
        if time.monotonic() > deadline:
            sys.exit(f"athanor: waited for {seconds:.0f} s; {problem}")
        time.sleep(1.0)  # between two questions to a database that another program prepares


def seconds_since_alive() -> float:
    """Return for how long the program of this container has not reported that it is alive; infinity if it never has."""
    try:
        return time.monotonic() - float(ALIVE_FILE.read_text())
    except (OSError, ValueError):
        return float("inf")


def _record_signs_of_life() -> None:
    """Act as the service manager of this process: write the time of each sign of life into a file.

    Where there is a service manager, it receives them instead.
    """
    if os.environ.get("NOTIFY_SOCKET"):
        return
    FOLDER.mkdir(mode=0o700, exist_ok=True)
    address = FOLDER / "notify"
    address.unlink(missing_ok=True)
    ALIVE_FILE.unlink(missing_ok=True)
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiver.bind(str(address))
    os.environ["NOTIFY_SOCKET"] = str(address)
    os.environ.setdefault("WATCHDOG_USEC", str(int(HUNG_AFTER_SECONDS * 1e6)))
    threading.Thread(target=_write_signs_of_life, args=(receiver,), name="signs of life", daemon=True).start()


def _write_signs_of_life(receiver: socket.socket) -> None:
    while True:
        if ALIVE in receiver.recv(4096).decode(errors="replace").splitlines():
            written = ALIVE_FILE.with_suffix(".new")
            written.write_text(str(time.monotonic()))
            written.replace(ALIVE_FILE)


def _celery(*arguments: str) -> None:
    from celery.bin.celery import main as celery  # noqa: PLC0415 - takes a second to import, and is not for the web

    # Quiet: without a banner, which is not a log line.
    sys.argv = ["celery", "--quiet", "-A", "athanor.config.celery", *arguments]
    sys.exit(celery())


if __name__ == "__main__":
    main()
