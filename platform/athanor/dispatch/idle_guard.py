"""Running jobs that hold slots without progress: a warning, then a pause at a checkpoint, by the limits of their team.

Progress is what the platform receives, by its own clock: a step, another phase, a restart, an event that reports work
(telemetry/ingest.py). An attempt with silent agents is not judged, since the fault may be the network's or the
platform's; when they report again, its time without progress starts from there. A start has a limit of its own
(observe.py), and jobs that only prepare data or evaluate a model report no steps on the way.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from django.db import transaction
from django.db.models import Max, OuterRef, Subquery
from django.db.models.functions import Greatest, Now

from athanor.accounts.failures import run_isolated
from athanor.budgets.periods import seconds_of
from athanor.budgets.prices import Tariffs
from athanor.budgets.tariff import MICRO
from athanor.core import clock, task_triggers
from athanor.jobs import events, services
from athanor.jobs.models import Attempt, Job, JobEvent
from athanor.jobs.states import AttemptStatus, Desired, JobStatus
from athanor.quotas.selectors import IdleLimits, idle_limits
from athanor.telemetry.models import Heartbeat
from athanor.telemetry.selectors import SILENT_AFTER
from trainer.contract.units import duration_text

ACTOR = "dispatch"
EVENT = "job.idle"


@dataclass(frozen=True)
class Idle:
    """A running attempt. `since`: when its newest progress was received."""

    attempt_id: str
    job_id: str
    team_id: str
    since: datetime


@dataclass(frozen=True)
class Actions:
    """What is due for an attempt."""

    warns: bool
    pauses: bool


def guard_due() -> None:
    """Warn of idle jobs, and pause those that are idle for too long."""
    limits = idle_limits()
    if not limits:
        return
    now = clock.database_now()
    shortest = min(seconds for each in limits.values() for seconds in (each.warning, each.pause) if seconds is not None)
    found = list(find_idle(limits, now - timedelta(seconds=shortest)))
    warned_at = _warned_at([each.job_id for each in found])
    for each in found:
        due = decide(each, limits[each.team_id], warned_at.get(each.job_id), now)
        if due.warns or due.pauses:
            work = f"idle job {each.job_id}"
            run_isolated(task_triggers.GUARD_IDLE, work, partial(_apply, each.job_id, limits[each.team_id], now))


def decide(idle: Idle, limits: IdleLimits, warned_at: datetime | None, now: datetime) -> Actions:
    """Return what is due. `warned_at`: of the newest warning of the job; one before its newest progress is over."""
    seconds = (now - idle.since).total_seconds()
    is_warned = warned_at is not None and warned_at >= idle.since
    return Actions(
        warns=not is_warned and limits.warning is not None and seconds >= limits.warning,
        pauses=limits.pause is not None and seconds >= limits.pause,
    )


def find_idle(teams: Collection[str], before: datetime, job_id: str | None = None) -> Iterator[Idle]:
    """Yield the attempts of these teams that run and report, and have made no progress since `before`.

    `job_id`: only of this job. An attempt of which only an earlier version of the platform has received progress is
    left out until it makes progress again.
    """
    newest = Heartbeat.objects.filter(attempt=OuterRef("pk")).order_by("-received_at").values("received_at")[:1]
    running = Attempt.objects.filter(
        status=AttemptStatus.RUNNING.value,
        end_report__isnull=True,
        job__status=JobStatus.RUNNING.value,
        job__desired=Desired.RUN.value,
        job__team__in=list(teams),
        job__resolved_spec__training__steps__isnull=False,  # a job that only prepares data has none
        job__resolved_spec__evaluation__isnull=True,  # its only step is its end
        job__resolved_spec__export__isnull=True,  # it takes no step
        job__progress__progressed_at__isnull=False,
    )
    if job_id is not None:
        running = running.filter(job=job_id)
    since = Greatest("started_at", "job__progress__progressed_at")
    idle = running.annotate(heard_at=Subquery(newest), since=since).filter(
        heard_at__gt=Now() - SILENT_AFTER, since__lte=before
    )
    for row in idle.order_by("job_id").values_list("id", "job_id", "job__team_id", "since"):
        yield Idle(*row)


def _warned_at(job_ids: Collection[str]) -> dict[str, datetime]:
    """Return when each of these jobs was warned of last, without those that never were."""
    warnings = JobEvent.objects.filter(job__in=list(job_ids), type=EVENT).order_by()
    return dict(warnings.values_list("job_id").annotate(newest=Max("time")))


@transaction.atomic
def _apply(job_id: str, limits: IdleLimits, now: datetime) -> None:
    """Decide again on the locked row, since progress may have come meanwhile, and act."""
    job = Job.objects.select_for_update(no_key=True, of=("self",)).select_related("pool").get(pk=job_id)
    for idle in find_idle([job.team_id], now, job_id):
        due = decide(idle, limits, _warned_at([job_id]).get(job_id), now)
        seconds = int((now - idle.since).total_seconds())
        if due.warns:
            slots = min(job.slots, job.pool.slots)  # a job larger than its pool holds the pool
            cost = _cost_per_hour(job, slots, now)
            facts = {
                "attempt": idle.attempt_id, "seconds": seconds, "slots": slots, "cost_per_hour": cost,
                "currency": job.pool.currency, "pause_seconds": limits.pause,
            }  # fmt: skip
            message = _warning(seconds, slots, cost, job.pool.currency, limits.pause)
            events.append(job, EVENT, actor=ACTOR, message=message, data=facts, time=now)
            job.save(update_fields=["event_seq", "updated_at"])
            task_triggers.trigger_after_commit(task_triggers.PUBLISH)
        if due.pauses:
            detail = f"{duration_text(seconds)} without progress; the limit is {duration_text(limits.pause or 0)}."
            services.pause_idle(job, detail, {"attempt": idle.attempt_id}, actor=ACTOR)


def _cost_per_hour(job: Job, slots: int, now: datetime) -> int:
    """Return what the slots of a job cost per hour at present, in millionths of the currency of its pool."""
    second = seconds_of(now)
    return slots * (Tariffs([job.pool], second, second + 1).price(job.pool_id).at(second) or 0)


def _warning(seconds: int, slots: int, cost: int, currency: str, pause: int | None) -> str:
    price = f", which cost {cost / MICRO:.2f} {currency} per hour" if cost else ""
    held = f"{slots} slot{'s' * (slots != 1)}"
    after = f" It is paused after {duration_text(pause)} without progress." if pause is not None else ""
    return f"No progress for {duration_text(seconds)}; it holds {held}{price}.{after}"
