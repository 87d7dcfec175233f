"""The two database roles, within a test's transaction."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.conf import settings
from django.db import connection


def become_runtime() -> None:
    """Act with the rights of web and workers until the end of the transaction."""
    with connection.cursor() as cursor:
        cursor.execute(f"SET LOCAL ROLE {settings.DATABASE_RUNTIME_ROLE}")


@contextmanager
def as_owner() -> Iterator[None]:
    """Act with the rights of the tables' owner."""
    with connection.cursor() as cursor:
        cursor.execute("RESET ROLE")
    yield
    become_runtime()
