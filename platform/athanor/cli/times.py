"""Times for people: in the local time zone with its offset, or in UTC with `athanor --utc`."""

from datetime import UTC, datetime

_zone: dict[str, bool] = {"utc": False}


def show_utc() -> None:
    """Print all times in UTC from now on."""
    _zone["utc"] = True


def moment(time: str | None) -> str:
    """Return an ISO 8601 time of the API as date, time and offset; empty for none."""
    return _local(time).isoformat(" ", "seconds") if time else ""


def clock(time: str) -> str:
    """Return the time of day with its offset."""
    return _local(time).timetz().isoformat("seconds")


def _local(time: str) -> datetime:
    known = datetime.fromisoformat(time)
    return known.astimezone(UTC) if _zone["utc"] else known.astimezone()
