"""The sweepers' schedule, as data. Messages only save latency; these alone carry every job to its end."""

from athanor.core import wakeups

# Seconds between two runs. An unfetched message of a sweeper expires before the next one is due.
SECONDS: dict[str, float] = {
    wakeups.ADMIT: 2.0,
    wakeups.DISPATCH: 2.0,
    wakeups.OBSERVE: 2.0,
    wakeups.FINALISE: 2.0,
    wakeups.PUBLISH: 2.0,
    wakeups.DELIVER: 5.0,
    wakeups.SWEEP_STORAGE: 30.0,
    wakeups.FOLD_TELEMETRY: 60.0,
    wakeups.SWEEP_TELEMETRY: 600.0,
}
SCHEDULE = {
    name: {"task": name, "schedule": seconds, "options": {"expires": seconds}} for name, seconds in SECONDS.items()
}
