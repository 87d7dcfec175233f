"""Waiting for a database connection ends soon after the pool has stopped trying."""

from django.conf import settings


def test_whoever_waits_for_a_connection_gives_up_soon_after_the_pool_has() -> None:
    """Found by `make chaos` (seeds 11 and 13): a request while PostgreSQL was unavailable waited ten seconds for a
    pool that had stopped trying after three, and held a thread for so long."""
    pool = settings.DATABASES["default"]["OPTIONS"]["pool"]
    assert pool["reconnect_timeout"] < pool["timeout"] <= pool["reconnect_timeout"] + 1
