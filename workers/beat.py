"""The schedule of the reconcilers, and the scheduler of Celery beat that keeps it."""

import celery.beat

from athanor.core.service_notify import ALIVE, READY, interval_seconds, notify
from athanor.reconcilers.registry import RECONCILERS

# Unfetched messages expire, so that a worker does not find thousands after an outage. Sender and worker use their own
# clocks: a worker whose clock is ahead by more than this would find every message expired.
CLOCKS_DIFFER_SECONDS = 30.0
SCHEDULE = {
    reconciler.task: {
        "task": reconciler.task,
        "schedule": reconciler.seconds,
        "options": {"expires": max(reconciler.seconds, CLOCKS_DIFFER_SECONDS)},
    }
    for reconciler in RECONCILERS
}


class MemoryScheduler(celery.beat.Scheduler):
    """Celery's scheduler without a file: a restarted beat sends each message after its interval, and no full disk or
    half-written file keeps it from starting."""

    def setup_schedule(self) -> None:
        """Read the schedule."""
        self.max_interval = int(interval_seconds())  # between two notifications
        self.merge_inplace(self.app.conf.beat_schedule)
        notify(READY)

    def tick(self) -> float:  # type: ignore[override] # its parameters are Celery's own shortcuts to functions
        """Send the messages that are due. Return the seconds until the next."""
        notify(ALIVE)
        seconds: float = super().tick()
        return seconds
