"""The sweepers' schedule, as data. Messages only save latency; these alone carry every job to its end."""

from athanor.operations.schedule import SWEEPERS

# An unfetched message of a sweeper expires, so that a worker that was away does not find thousands. Sender and worker
# each go by their own clock: a worker that is ahead by more than this would find every message expired.
CLOCKS_DIFFER_SECONDS = 30.0
SCHEDULE = {
    sweeper.task: {
        "task": sweeper.task,
        "schedule": sweeper.seconds,
        "options": {"expires": max(sweeper.seconds, CLOCKS_DIFFER_SECONDS)},
    }
    for sweeper in SWEEPERS
}
