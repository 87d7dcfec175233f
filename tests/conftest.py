"""What all tests share: settings for Django, stores that start when a test first needs them, and markers."""

import gc
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from django.db import connection

from deploy.local.handle import wait_until
from tests import stores
from tests.selection import starts_processes

stores.configure()
# An example takes as long as the machine is busy: no test judges that.
hypothesis.settings.register_profile("athanor", deadline=None)
hypothesis.settings.load_profile("athanor")
STARTS_SOMETHING = ("server", "processes", "e2e", "slow", "browser")
SERVER_FIXTURES = {"running_stores", "django_db_setup", "db", "transactional_db", "stack"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--no-processes",
        action="store_true",
        help="run only tests without the markers server and processes, and fail those that start a process",
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With --no-processes, leave out files whose tests would all be deselected: importing them takes seconds."""
    is_left_out = config.getoption("--no-processes") and collection_path.is_file() and starts_processes(collection_path)
    return True if is_left_out else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests that need a store or the whole stack with `server`, and those that start programs with `processes`."""
    for item in items:
        if SERVER_FIXTURES & set(getattr(item, "fixturenames", ())) or item.get_closest_marker("django_db"):
            item.add_marker("server")
        if starts_processes(item.path):
            item.add_marker("processes")
    if config.getoption("--no-processes"):
        slow = [item for item in items if any(item.get_closest_marker(name) for name in STARTS_SOMETHING)]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in set(slow)]


def pytest_collection_finish() -> None:
    """Leave the objects of imported modules and collected tests out of every garbage collection that follows."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_process_is_started(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With --no-processes, let a test that starts a process fail. git is allowed: it lists files, and is quick."""
    if not request.config.getoption("--no-processes"):
        return
    start = subprocess.Popen.__init__

    def refuse(self: Any, args: Any, *rest: Any, **options: Any) -> None:
        if isinstance(args, list) and args[:1] == ["git"]:
            start(self, args, *rest, **options)
            return
        raise AssertionError(f"{request.node.nodeid} starts {args!r}: mark it with pytest.mark.processes")

    monkeypatch.setattr(subprocess.Popen, "__init__", refuse)
    monkeypatch.setattr(os, "fork", lambda: refuse(None, "a fork"))


@pytest.fixture(scope="session")
def running_stores() -> None:
    """PostgreSQL, Valkey and S3 of this pytest process, started now if no test has needed them before."""
    stores.start()


@pytest.fixture(scope="session")
def django_db_setup(running_stores: None, django_db_setup: None) -> Iterator[None]:
    """The tests' database. A connection still on its way back into the pool would keep it from being dropped."""
    yield
    connection.close()
    pool = connection.pool

    def is_idle() -> bool:
        stats = pool.get_stats()
        return pool.closed or stats["pool_available"] == stats["pool_size"]

    wait_until(is_idle, "the pool has its connections back", 10)
