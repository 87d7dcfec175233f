"""Compare the clock of this machine with that of the database, by which limits, leases and expiry are decided."""

from datetime import datetime

from django.db import connection
from django.utils import timezone

from athanor.core.errors import Misconfigured

MAX_OFFSET_SECONDS = 5.0


def database_now() -> datetime:
    """Return the time by the clock of the database."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        now: datetime = cursor.fetchone()[0]
    return now


def offset_seconds() -> float:
    """Return by how many seconds the clock of this machine is ahead of the database's; negative if it is behind.

    It is the smallest offset that explains the answer: one that takes long does not look like a wrong clock.
    """
    before = timezone.now()
    theirs = database_now()
    after = timezone.now()
    if theirs < before:
        return (before - theirs).total_seconds()
    return min(0.0, (after - theirs).total_seconds())


def require_right_clock() -> None:
    """Raise Misconfigured if the clock of this machine differs from the database's by more than MAX_OFFSET_SECONDS."""
    offset = offset_seconds()
    if abs(offset) > MAX_OFFSET_SECONDS:
        direction = "ahead of" if offset > 0 else "behind"
        raise Misconfigured(
            "clock_differs",
            f"the clock of this machine is {abs(offset):.0f} seconds {direction} the database's",
            remedy="synchronise the clocks of both machines (NTP); until then this process decides nothing",
        )
