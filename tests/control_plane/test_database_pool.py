"""Connections of the database pool: how long a request waits for one, and what it remembers of the request before."""

from collections.abc import Iterator
from contextlib import suppress

import psycopg
import pytest
from django.conf import settings
from django.db import connection, connections

from athanor.core.postgresql.base import DatabaseWrapper


@pytest.fixture
def pooled(db: None) -> Iterator[DatabaseWrapper]:
    """Django's wrapper of a pool that has one connection."""
    options = {**connection.settings_dict["OPTIONS"], "pool": {"min_size": 1, "max_size": 1, "timeout": 10}}
    found = DatabaseWrapper({**connection.settings_dict, "OPTIONS": options}, "pooled")
    connections["pooled"] = found  # django.contrib.postgres looks each new connection up
    yield found
    del connections["pooled"]
    found.close()
    found.close_pool()


def teams_of(pooled: DatabaseWrapper) -> str:
    with pooled.cursor() as cursor:
        cursor.execute("SELECT current_setting('athanor.teams', true)")
        return cursor.fetchone()[0] or ""


def restrict(pooled: DatabaseWrapper) -> int:
    """Restrict the session to a team. Return the process id of its server."""
    with pooled.cursor() as cursor:
        cursor.execute("SELECT set_config('athanor.teams', 'team_1', false), pg_backend_pid()")
        return int(cursor.fetchone()[1])


def test_whoever_waits_for_a_connection_gives_up_soon_after_the_pool_has() -> None:
    """Found by `make chaos` (seeds 11 and 13): a request while PostgreSQL was unavailable waited ten seconds for a
    pool that had stopped trying after three, and held a thread for so long."""
    pool = settings.DATABASES["default"]["OPTIONS"]["pool"]
    assert pool["reconnect_timeout"] < pool["timeout"] <= pool["reconnect_timeout"] + 1


def test_a_connection_forgets_the_callers_teams_when_the_request_ends(pooled: DatabaseWrapper) -> None:
    initial = teams_of(pooled)
    server = restrict(pooled)
    pooled.close()
    assert teams_of(pooled) == initial
    assert restrict(pooled) == server, "the same connection is used again"


def test_a_connection_forgets_them_also_when_a_transaction_failed(pooled: DatabaseWrapper) -> None:
    initial = teams_of(pooled)
    server = restrict(pooled)
    pooled.set_autocommit(False)
    with suppress(Exception), pooled.cursor() as cursor:
        cursor.execute("SELECT 1 / 0")
    pooled.close()
    pooled.set_autocommit(True)
    assert teams_of(pooled) == initial
    assert restrict(pooled) == server


def test_a_connection_that_cannot_forget_them_is_not_used_again(pooled: DatabaseWrapper) -> None:
    initial = teams_of(pooled)
    server = restrict(pooled)
    with psycopg.connect(pooled.connection.info.dsn, password=pooled.connection.info.password) as other:
        other.execute("SELECT pg_terminate_backend(%s)", [server])
    pooled.close()
    assert teams_of(pooled) == initial
    assert restrict(pooled) != server
