"""The times of retries, and when a delivery is given up. Pure."""

from datetime import datetime, timedelta

FIRST_WAITS_SECONDS = (5, 30, 120, 600, 1800, 3600, 7200)
LAST_WAIT_SECONDS = 4 * 3600
GIVE_UP_AFTER = timedelta(hours=72)
# A webhook none of whose tries succeeded for that long is switched off.
DISABLE_AFTER = GIVE_UP_AFTER
MAX_PAUSE_SECONDS = 300
SPREAD = 0.2


def pause_seconds(failures: int) -> float:
    """Return for how many seconds a webhook is paused after this many consecutive failures.

    The pause applies to the webhook and does not depend on the number of its pending deliveries.
    """
    return float(min(MAX_PAUSE_SECONDS, 2 ** min(failures, 10)))


def next_try(tries: int, now: datetime, gives_up_at: datetime, chance: float) -> datetime | None:
    """Return when to try again after `tries` failed tries; None if the delivery is given up.

    `chance` in [0, 1) varies the wait by up to SPREAD, so that deliveries that were due together are spread.
    """
    position = tries - 1
    wait = FIRST_WAITS_SECONDS[position] if position < len(FIRST_WAITS_SECONDS) else LAST_WAIT_SECONDS
    at = now + timedelta(seconds=wait * (1 + SPREAD * (2 * chance - 1)))
    if at <= gives_up_at:
        return at
    # One last try right at the end, unless that is now.
    return gives_up_at if gives_up_at - now > timedelta(seconds=FIRST_WAITS_SECONDS[0]) else None
