"""The schedule of the reconcilers, as data for Celery beat."""

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
