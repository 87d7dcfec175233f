"""Times for people: in the local time zone with its offset, or in UTC with `athanor --utc`."""

import re
from datetime import UTC, datetime, timedelta

from athanor.cli.errors import CliError, ExitCode
from trainer.contract.units import parse_duration

TIME_HELP = "2026-01-31, 2026-01-31T12:00:00Z, or 7d for seven days ago"
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
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


def has_passed(time: str | None) -> bool:
    """Return whether a time of the API is over; False for none."""
    return time is not None and datetime.fromisoformat(time) <= datetime.now(UTC)


def read_time(option: str, text: str | None) -> str | None:
    """Return a time for the API from a date, a time or a duration until now. Raises CliError naming the option."""
    if text is None:
        return None
    try:
        if text[:1].isdigit() and text[-1:].isalpha() and "T" not in text:
            return (datetime.now(UTC) - timedelta(seconds=parse_duration(text))).isoformat()
        if _DATE.fullmatch(text):
            day = datetime.fromisoformat(text)
            return (day.replace(tzinfo=UTC) if _zone["utc"] else day.astimezone()).isoformat()
        if datetime.fromisoformat(text).tzinfo is not None:
            return text
    except (ValueError, OverflowError):
        pass
    raise CliError(ExitCode.USAGE, f"{option} {text!r} is no time: write it like {TIME_HELP}")


def _local(time: str) -> datetime:
    known = datetime.fromisoformat(time)
    return known.astimezone(UTC) if _zone["utc"] else known.astimezone()
