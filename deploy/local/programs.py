"""The platform's own long-lived programs, and the object store, as supervised services."""

import http.client
import os
import socket
import sys
from collections.abc import Callable

from deploy.local.environment import BUCKET, REPOSITORY, with_repository_on_path
from deploy.local.folder import DataFolder
from deploy.local.secret_values import S3_ACCESS_KEY
from deploy.local.service import Service

PROBE_SECONDS = 2.0
STORE_PROBE_SECONDS = 5.0  # its proxy asks its other servers, all in one thread that also carries the uploads
WEB_PROCESSES = 2


def answers_ok(port: int, path: str, seconds: float = PROBE_SECONDS) -> Callable[[], bool]:
    """Whether 127.0.0.1 answers 200 there, within so many seconds."""

    def ask() -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
        try:
            connection.request("GET", path)
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    return ask


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
        answers=answers_ok(port, "/healthcheck", STORE_PROBE_SECONDS),
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
        environment=with_repository_on_path(environment),
        working_folder=REPOSITORY,
        log=folder.logs / f"{name}.log",
        answers=answers_ok(listening.getsockname()[1], "/readyz"),
        notifies=True,
        descriptors=(listening.fileno(),),
    )  # fmt: skip


def worker(folder: DataFolder, environment: dict[str, str]) -> Service:
    """Return the Celery worker as a supervised service."""
    return Service(
        name="worker",
        command=[sys.executable, "-m", "athanor.config.program", "worker"],
        environment=with_repository_on_path(environment),
        working_folder=REPOSITORY,
        log=folder.logs / "worker.log",
        notifies=True,
        grace_seconds=20.0,
    )


def beat(folder: DataFolder, environment: dict[str, str]) -> Service:
    """Return Celery beat as a supervised service."""
    return Service(
        name="beat",
        command=[sys.executable, "-m", "athanor.config.program", "beat"],
        environment=with_repository_on_path(environment),
        working_folder=REPOSITORY,
        log=folder.logs / "beat.log",
        notifies=True,
    )  # fmt: skip
