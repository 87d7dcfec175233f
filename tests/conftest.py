"""What all tests share: settings for Django, stores that start when a test first needs them, and markers."""

from collections.abc import Iterator

import pytest
from django.db import connection

from deploy.local.handle import wait_until
from tests import stores

stores.configure()
SERVER_FIXTURES = {"running_stores", "django_db_setup", "db", "transactional_db", "stack"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that needs a store or the whole stack with `server`."""
    for item in items:
        if SERVER_FIXTURES & set(getattr(item, "fixturenames", ())) or item.get_closest_marker("django_db"):
            item.add_marker("server")


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
