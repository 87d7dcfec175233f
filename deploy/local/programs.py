"""The platform's own long-lived programs, and the object store, as supervised services."""

import http.client
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from deploy.local.environment import BUCKET, REPOSITORY
from deploy.local.folder import DataFolder
from deploy.local.secret_values import S3_ACCESS_KEY
from deploy.local.service import Service

PROBE_SECONDS = 2.0
WEB_PROCESSES = 2
WORKER_THREADS = 4


def answers_ok(port: int, path: str) -> Callable[[], bool]:
    """Whether 127.0.0.1 answers 200 there."""

    def ask() -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PROBE_SECONDS)
        try:
            connection.request("GET", path)
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    return ask


def log_says(log: Path, text: str) -> tuple[Callable[[], None], Callable[[], bool]]:
    """Readiness of a program that opens no port: its log holds `text` after the point where it was started."""
    start = 0

    def remember() -> None:
        nonlocal start
        start = log.stat().st_size if log.exists() else 0

    def said() -> bool:
        with log.open("rb") as handle:
            handle.seek(min(start, log.stat().st_size))
            return text.encode() in handle.read()

    return remember, said


def object_store(folder: DataFolder, port: int, secret_key: str) -> Service:
    """Return the object store as a supervised service."""
    return Service(
        name="object-store",
        # Swift 2.38 runs on eventlet, which warns of its age at each start.
        command=[
            sys.executable, "-W", "ignore", "-m", "deploy.local.object_store", str(folder.objects), str(port),
        ],
        environment={
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "PYTHONUNBUFFERED": "1",
            "ATHANOR_S3_ACCESS_KEY": S3_ACCESS_KEY,
            "ATHANOR_S3_SECRET_KEY": secret_key,
            "ATHANOR_S3_BUCKET": BUCKET,
        },
        working_folder=REPOSITORY,
        log=folder.logs / "object-store.log",
        ready=answers_ok(port, "/healthcheck"),
    )  # fmt: skip


def web(folder: DataFolder, listening: socket.socket, environment: dict[str, str]) -> list[Service]:
    """Return web processes that accept from one socket: Python runs one thread at a time, and there are more cores."""
    names = ["web", *(f"web-{number}" for number in range(2, WEB_PROCESSES + 1))]
    return [_web(name, folder, listening, environment) for name in names]


def _web(name: str, folder: DataFolder, listening: socket.socket, environment: dict[str, str]) -> Service:
    return Service(
        name=name,
        command=[
            sys.executable, "-m", "athanor.config.server", f"--fd={listening.fileno()}",
        ],
        environment=_with_platform_on_path(environment),
        working_folder=REPOSITORY,
        log=folder.logs / f"{name}.log",
        ready=answers_ok(listening.getsockname()[1], "/readyz"),
        descriptors=(listening.fileno(),),
    )  # fmt: skip


def worker(folder: DataFolder, environment: dict[str, str]) -> Service:
    """Return the Celery worker as a supervised service."""
    log = folder.logs / "worker.log"
    remember, ready = log_says(log, " ready.")
    return Service(
        name="worker",
        command=[
            sys.executable, "-m", "celery", "-A", "athanor.config.celery", "worker", "--loglevel=INFO",
            "--pool=threads", f"--concurrency={WORKER_THREADS}", "--without-gossip", "--without-mingle",
        ],
        environment=_with_platform_on_path(environment),
        working_folder=REPOSITORY,
        log=log,
        ready=ready,
        before_start=remember,
        grace_seconds=20.0,
    )  # fmt: skip


def beat(folder: DataFolder, environment: dict[str, str]) -> Service:
    """Return Celery beat as a supervised service."""
    log = folder.logs / "beat.log"
    remember, ready = log_says(log, "beat: Starting")
    schedule = folder.run / "celerybeat-schedule"

    def start_afresh() -> None:
        """Delete what beat stored of its last run: it may be incomplete, and beat does not need it."""
        for path in folder.run.glob("celerybeat-schedule*"):
            path.unlink()
        remember()

    return Service(
        name="beat",
        command=[
            sys.executable, "-m", "celery", "-A", "athanor.config.celery", "beat", "--loglevel=INFO",
            f"--schedule={schedule}", "--pidfile=",
        ],
        environment=_with_platform_on_path(environment),
        working_folder=REPOSITORY,
        log=log,
        ready=ready,
        before_start=start_afresh,
        stop_signal=signal.SIGTERM,
    )  # fmt: skip


def _with_platform_on_path(environment: dict[str, str]) -> dict[str, str]:
    """`workers` and `trainer` lie in the repository's root, `athanor` below platform/."""
    path = f"{REPOSITORY / 'platform'}{os.pathsep}{REPOSITORY}"
    return {**environment, "PYTHONPATH": path}
