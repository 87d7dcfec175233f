"""Quiet hours and the digest: by example, over changes of the clocks, and by property."""

from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from athanor.alerts.mail_times import Timing, is_quiet, mail_time

BERLIN = "Europe/Berlin"
NIGHT = (time(22), time(7))


def at(text: str, zone: str = BERLIN) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)


def timing(
    quiet: tuple[time, time] | tuple[None, None] = (None, None),
    digest: time | None = None,
    *,
    critical: bool = True,
    zone: str = BERLIN,
) -> Timing:
    return Timing(zone, *quiet, digest, critical)


@pytest.mark.parametrize(
    ("wishes", "is_critical", "now", "expected"),
    [
        (timing(), False, "2026-11-28 23:00", "2026-11-28 23:00"),
        (timing(NIGHT), False, "2026-11-28 21:59", "2026-11-28 21:59"),
        (timing(NIGHT), False, "2026-11-28 22:00", "2026-11-29 07:00"),
        (timing(NIGHT), False, "2026-11-29 03:00", "2026-11-29 07:00"),
        (timing(NIGHT), False, "2026-11-29 07:00", "2026-11-29 07:00"),
        (timing(NIGHT), True, "2026-11-29 03:00", "2026-11-29 03:00"),
        (timing(NIGHT, critical=False), True, "2026-11-29 03:00", "2026-11-29 07:00"),
        (timing(digest=time(8)), False, "2026-11-28 09:00", "2026-11-29 08:00"),
        (timing(digest=time(8)), False, "2026-11-28 08:00", "2026-11-29 08:00"),
        (timing(digest=time(8)), True, "2026-11-28 09:00", "2026-11-28 09:00"),
        (timing(NIGHT, time(6)), False, "2026-11-28 09:00", "2026-11-29 07:00"),
        # Clocks go from 2:00 to 3:00 on 29 March, and from 3:00 to 2:00 on 25 October.
        (timing((time(22), time(2, 30))), False, "2026-03-28 23:00", "2026-03-29 03:30"),
        (timing(NIGHT), False, "2026-10-24 23:00", "2026-10-25 07:00"),
    ],
)
def test_examples(wishes: Timing, is_critical: bool, now: str, expected: str) -> None:
    assert mail_time(wishes, is_critical, at(now)) == at(expected)


TIMES = st.times().map(lambda value: value.replace(second=0, microsecond=0))
MOMENTS = st.integers(0, 2 * 365 * 24 * 60).map(
    lambda value: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=value)
)


@given(
    start=TIMES, end=TIMES, digest=st.none() | TIMES, now=MOMENTS, zone=st.sampled_from(["UTC", "Asia/Kathmandu"])
)  # fmt: skip
def test_a_mail_never_comes_in_quiet_hours_and_waits_no_longer_than_it_must(
    start: time, end: time, digest: time | None, now: datetime, zone: str
) -> None:
    """In zones that never change their clocks: a time of day that is skipped is shown by examples."""
    quiet = (start, end) if start != end else (None, None)
    wishes = timing(quiet, digest, zone=zone)
    found = mail_time(wishes, False, now)
    assert now <= found <= now + timedelta(hours=48)
    assert not is_quiet(wishes, found)
    if digest is None:
        assert (found == now) == (not is_quiet(wishes, now))
    else:
        shows = found.astimezone(ZoneInfo(zone)).time()
        assert shows == digest or (shows == end and is_quiet(wishes, found - timedelta(minutes=1)))
    assert mail_time(wishes, True, now) == now
