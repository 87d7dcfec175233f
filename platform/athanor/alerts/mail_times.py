"""When a notification is mailed: quiet hours and the daily digest. Pure."""

from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo


@dataclass(frozen=True)
class Timing:
    """A user's wishes. Times of day are in `time_zone`.

    `quiet_from` and `quiet_until` are both None without quiet hours. `digest_at`: None for immediate mails.
    """

    time_zone: str
    quiet_from: time | None
    quiet_until: time | None
    digest_at: time | None
    critical_immediately: bool


def mail_time(timing: Timing, is_critical: bool, now: datetime) -> datetime:
    """Return when to mail what happens now: immediately, with the next digest, or after the quiet hours."""
    if is_critical and timing.critical_immediately:
        return now
    at = now if timing.digest_at is None else _next(timing.digest_at, timing.time_zone, now)
    if timing.quiet_until is not None and is_quiet(timing, at):
        return _next(timing.quiet_until, timing.time_zone, at)
    return at


def is_quiet(timing: Timing, moment: datetime) -> bool:
    """Return whether the moment is within the quiet hours, which may pass midnight."""
    if timing.quiet_from is None or timing.quiet_until is None:
        return False
    local = moment.astimezone(ZoneInfo(timing.time_zone)).time()
    if timing.quiet_from <= timing.quiet_until:
        return timing.quiet_from <= local < timing.quiet_until
    return local >= timing.quiet_from or local < timing.quiet_until


def _next(at: time, zone: str, after: datetime) -> datetime:
    """Return the first moment after `after` at which clocks in the zone show `at`, in UTC.

    A time that a change to summer time skips is that much later.
    """
    tz = ZoneInfo(zone)
    day = after.astimezone(tz).date()
    for days in (0, 1, 2):
        moment = datetime.combine(day + timedelta(days=days), at, tz).astimezone(UTC)
        if moment > after:
            return moment
    raise AssertionError(f"{at} does not come within two days of {after} in {zone}")
