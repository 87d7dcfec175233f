"""The sweepers' schedule, as data. Messages only save latency; these alone carry every job to its end."""

from athanor.operations.schedule import SWEEPERS

# An unfetched message of a sweeper expires before the next one is due.
SCHEDULE = {
    sweeper.task: {"task": sweeper.task, "schedule": sweeper.seconds, "options": {"expires": sweeper.seconds}}
    for sweeper in SWEEPERS
}
