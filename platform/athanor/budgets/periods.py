"""Calendar periods in UTC, as whole seconds since 1970. Pure."""

from datetime import UTC, datetime, timedelta
from enum import StrEnum

HOUR = 3600


class Every(StrEnum):
    """The length of a period."""

    DAY = "day"
    MONTH = "month"
    QUARTER = "quarter"


def seconds_of(moment: datetime) -> int:
    """Return whole seconds since 1970, rounded down: a fraction of a second is not charged before it is over."""
    return int((moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(seconds=1))


def moment_of(seconds: int) -> datetime:
    """Return the UTC time of whole seconds since 1970."""
    return datetime.fromtimestamp(seconds, tz=UTC)


def bounds(every: Every, moment: datetime) -> tuple[datetime, datetime]:
    """Return the start of the period that contains `moment`, and of the next one."""
    day = moment.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if every is Every.DAY:
        return day, day + timedelta(days=1)
    months = 1 if every is Every.MONTH else 3
    first = day.replace(day=1, month=day.month - (day.month - 1) % months)
    after = first.month + months
    return first, first.replace(year=first.year + (after > 12), month=(after - 1) % 12 + 1)


def pieces(start: int, end: int) -> list[tuple[int, int]]:
    """Split [start, end) at full hours, at which periods end too."""
    found = []
    while start < end:
        stop = min(end, start - start % HOUR + HOUR)
        found.append((start, stop))
        start = stop
    return found
