"""The schedule of the reconcilers, and the scheduler of Celery beat that keeps it."""

import time

import celery.beat
from django.db import DatabaseError, connection

from athanor.core.service_notify import ALIVE, READY, interval_seconds, notify
from athanor.reconcilers.registry import IDLE_SECONDS, RECONCILERS

# Unfetched messages expire, so that a worker does not find thousands after an outage. Sender and worker use their own
# clocks: a worker whose clock is ahead by more than this would find every message expired.
CLOCKS_DIFFER_SECONDS = 30.0
POLL_SECONDS = 5.0  # how often an idle platform is asked whether work has begun
SCHEDULE = {
    reconciler.task: {
        "task": reconciler.task,
        "schedule": reconciler.seconds,
        "options": {"expires": max(reconciler.seconds, CLOCKS_DIFFER_SECONDS)},
    }
    for reconciler in RECONCILERS
}


class MemoryScheduler(celery.beat.Scheduler):
    """Celery's scheduler without a file, and at rest while the platform is idle.

    A restarted beat sends each message after its interval, and no full disk or half-written file keeps it from
    starting. While no work waits, messages are sent every IDLE_SECONDS, and work that begins is noticed within
    POLL_SECONDS although its trigger may be lost.
    """

    _rest_until = _asked_at = _notified_at = float("-inf")
    _idle = False

    def setup_schedule(self) -> None:
        """Read the schedule."""
        self.merge_inplace(self.app.conf.beat_schedule)
        notify(READY)

    def tick(self) -> float:  # type: ignore[override] # its parameters are Celery's own shortcuts to functions
        """Send a message that is due. Return the seconds until the next."""
        now = time.monotonic()
        if now - self._notified_at >= interval_seconds():
            self._notified_at = now
            notify(ALIVE)
        if now < self._rest_until and self._is_idle(now):
            return POLL_SECONDS
        seconds: float = super().tick()
        if seconds > 0:  # all that were due are sent
            self._rest_until = now + IDLE_SECONDS
        return min(seconds, POLL_SECONDS)

    def _is_idle(self, now: float) -> bool:
        """Return whether the platform is idle, asking the database once within POLL_SECONDS."""
        if now - self._asked_at >= POLL_SECONDS:
            self._asked_at, self._idle = now, _ask_idle()
        return self._idle


def _ask_idle() -> bool:
    from athanor.reconcilers import backlog  # noqa: PLC0415 - needs the models, which are ready only now

    try:
        return backlog.is_idle()
    except DatabaseError:  # the workers report it
        connection.close()
        return False
