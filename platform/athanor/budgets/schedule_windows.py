"""When a job may run by its own schedule: after `not_before`, and while price and carbon are below its ceilings.

A job with a carbon ceiling waits while the carbon intensity is unknown (its reason says so); a running one is not
paused for it. Ceilings no longer apply when waiting longer would miss the deadline: from its time limit before that on.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta

from athanor.budgets.charges import time_limit
from athanor.budgets.periods import HOUR, moment_of, seconds_of
from athanor.budgets.prices import Tariffs
from athanor.budgets.tariff import MICRO, Steps
from athanor.clusters.models import Pool
from athanor.jobs.models import Job
from athanor.jobs.reasons import Reason

LOOKS_AHEAD_SECONDS = 7 * 24 * HOUR
MILLI = 1000


class ScheduleWindows:
    """Schedule windows of jobs in these pools, now and in the following week."""

    def __init__(self, pools: Iterable[Pool], now: datetime) -> None:
        self.now = now
        self._second = seconds_of(now)
        self._end = self._second + LOOKS_AHEAD_SECONDS
        self._pools = {pool.id: pool for pool in pools}
        self._made: Tariffs | None = None

    @property
    def _tariffs(self) -> Tariffs:
        """Read the prices when the first job with a ceiling needs them."""
        if self._made is None:
            self._made = Tariffs(self._pools.values(), self._second, self._end)
        return self._made

    def waiting_reason(self, job: Job) -> tuple[Reason, str] | None:
        """Return why the job may not start now, with a sentence; None if it may."""
        if job.not_before is not None and job.not_before > self.now:
            return Reason.NOT_BEFORE, f"Not before {job.not_before:%Y-%m-%d %H:%M:%S} UTC."
        closed = self._closed(job, unknown_closes=True)
        return (Reason.WINDOW_CLOSED, closed) if closed else None

    def pause_reason(self, job: Job) -> str:
        """Return why a running, deferrable job must pause now; empty if it may continue."""
        schedule = _schedule(job)
        return self._closed(job, unknown_closes=False) if schedule.get("deferrable") else ""

    def opens_at(self, job: Job) -> datetime | None:
        """Return when the job may start: now if it may, None if unknown."""
        first = max(self._second, seconds_of(job.not_before) if job.not_before else 0)
        gives_way = self._gives_way_at(job)
        found = first
        for steps, ceiling in self._ceilings(job):
            below = [
                max(begins, first)
                for begins, _, value in steps.spans(first, max(self._end, first + 1))
                if value is not None and value <= ceiling
            ]
            if not below:
                return moment_of(max(gives_way, first)) if gives_way is not None else None
            found = max(found, below[0])
        return moment_of(found if gives_way is None else max(first, min(found, gives_way)))

    def _closed(self, job: Job, *, unknown_closes: bool) -> str:
        ceilings = self._ceilings(job)
        if not ceilings:
            return ""
        gives_way = self._gives_way_at(job)
        if gives_way is not None and gives_way <= self._second:
            return ""
        pool = self._tariffs.pools[job.pool_id]
        schedule = _schedule(job)
        for (steps, ceiling), name in zip(ceilings, _named(schedule), strict=True):
            value = steps.at(self._second)
            if value is None and unknown_closes:
                return (
                    f"The carbon intensity of cluster {pool.cluster} is not known now; an administrator uploads or "
                    f"connects it under prices, and without {name} it may start."
                )
            if value is not None and value > ceiling:
                if name == "max_price_per_slot_hour":
                    return f"{value / MICRO:g} {pool.currency} a slot-hour; its ceiling is {ceiling / MICRO:g}."
                return f"{value / MILLI:g} g CO2 a kWh; its ceiling is {ceiling / MILLI:g}."
        return ""

    def _ceilings(self, job: Job) -> list[tuple[Steps, int]]:
        schedule, found = _schedule(job), []
        for name in _named(schedule):
            if name == "max_price_per_slot_hour":
                found.append((self._tariffs.price(job.pool_id), round(schedule[name] * MICRO)))
            else:
                found.append((self._tariffs.carbon(job.pool_id), round(schedule[name] * MILLI)))
        return found

    def _gives_way_at(self, job: Job) -> int | None:
        if job.deadline is None:
            return None
        return seconds_of(job.deadline - timedelta(seconds=time_limit(job)))


def waiting_reason(job: Job, now: datetime) -> tuple[Reason, str] | None:
    """Return why a job may not start now. For many jobs, use one `ScheduleWindows`."""
    return ScheduleWindows([job.pool], now).waiting_reason(job)


def opens_at(job: Job, now: datetime) -> datetime | None:
    """Return when a job may start. For many jobs, use one `ScheduleWindows`."""
    return ScheduleWindows([job.pool], now).opens_at(job)


def has_ceiling(job: Job) -> bool:
    """Return whether the job's schedule has a price or carbon ceiling."""
    return bool(_named(_schedule(job)))


def _schedule(job: Job) -> dict[str, float | bool]:
    return job.schedule or {}


def _named(schedule: dict[str, float | bool]) -> list[str]:
    names = ("max_price_per_slot_hour", "max_grams_per_kwh")
    return [name for name in names if schedule.get(name) is not None]
