"""The usage hours of jobs by what their slots were held for, stored, so that a statement of a team reads no events.

A job's hours are divided by its ledger (goodput.py) and replaced each time, as a later attempt changes what an earlier
one lost: while the job is unfinished after a twentieth of its age, within bounds, and once more after its end. The
parts of an hour sum to its slot-seconds and cost at that time, whatever the events say.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from athanor.accounts.failures import run_isolated
from athanor.budgets.goodput import by_hour, divide, hour_of, slots_by_attempt
from athanor.budgets.models import JobGoodput, Meter, UsageHour, UsageInterruption, UsagePart
from athanor.core import task_triggers
from athanor.jobs import selectors
from athanor.jobs.goodput import Entry, Interruption
from athanor.jobs.models import Job
from athanor.jobs.states import FINAL
from athanor.jobs.timeline import Activity

MIN_INTERVAL, MAX_INTERVAL = timedelta(minutes=1), timedelta(hours=1)
BATCH = 500  # jobs of one run
_MICROSECOND = timedelta(microseconds=1)
_UNATTRIBUTED = (Activity.UNATTRIBUTED.value, "", None)


@dataclass
class _Hour:
    """What is known of a usage hour: weights of its parts, and of the refunds by the reason of their attempt's end."""

    parts: dict[tuple[str, str, str | None], int] = field(default_factory=lambda: defaultdict(int))
    refunds: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    interruptions: dict[tuple[str, bool], list[Interruption]] = field(default_factory=lambda: defaultdict(list))


def due(now: datetime) -> QuerySet[JobGoodput]:
    """Return the jobs with usage hours that are due to be divided."""
    ended = Q(job__status__in=[status.value for status in FINAL])
    return JobGoodput.objects.filter(Q(due_at__lte=now) | ended, final=False)


def count_due() -> None:
    """Divide the usage hours of the jobs that are due, at most BATCH of them. Errors are isolated per job."""
    now = timezone.now()
    for job_id in list(due(now).order_by("due_at").values_list("pk", flat=True)[:BATCH]):
        run_isolated(task_triggers.GOODPUT, f"dividing the usage of job {job_id}", partial(count, job_id, now))


def count(job_id: str, now: datetime) -> None:
    """Divide all usage hours of a job."""
    with transaction.atomic():
        row = JobGoodput.objects.select_for_update(no_key=True).get(pk=job_id)
        job = Job.objects.select_related("pool").prefetch_related("attempts").get(pk=job_id)
        meters = list(Meter.objects.filter(job=job).select_related("attempt"))
        hours = list(UsageHour.objects.filter(job=job).order_by("hour"))
        entries, interruptions = selectors.goodput_of(job, slots_by_attempt(job, meters))
        found = _weigh(entries, interruptions, meters, hours)
        ids = [hour.pk for hour in hours]
        UsagePart.objects.filter(usage__in=ids).delete()
        UsageInterruption.objects.filter(usage__in=ids).delete()
        UsagePart.objects.bulk_create(part for hour in hours for part in _parts(hour, found[hour.hour]))
        UsageInterruption.objects.bulk_create(row for hour in hours for row in _interruptions(hour, found[hour.hour]))
        row.counted_at, row.due_at = now, now + min(max((now - job.created_at) / 20, MIN_INTERVAL), MAX_INTERVAL)
        row.final = job.status in FINAL and all(meter.closed for meter in meters)
        row.save()


def _weigh(
    entries: Sequence[Entry],
    interruptions: Sequence[Interruption],
    meters: Sequence[Meter],
    hours: Sequence[UsageHour],
) -> Mapping[datetime, _Hour]:
    """Return the weights of each hour: metered slot time in microseconds."""
    found: dict[datetime, _Hour] = defaultdict(_Hour)
    by_number = {meter.attempt.number: meter for meter in meters}
    for entry in entries:
        meter = by_number.get(entry.span.attempt or 0)
        if meter is None:
            continue
        cause = None if entry.cause is None else interruptions[entry.cause].reason
        key = (entry.span.activity.value, entry.span.phase, cause)
        for start, end in by_hour(entry.span.start, entry.span.end, meter):
            found[hour_of(start)].parts[key] += ((end - start) // _MICROSECOND) * entry.slots
    for meter in meters:
        # Refunds are of the time since the last checkpoint, up to the end.
        since = meter.metered_until - timedelta(seconds=meter.fault_slot_seconds // meter.slots)
        for start, end in by_hour(since, meter.metered_until, meter):
            found[hour_of(start)].refunds[meter.attempt.reason] += ((end - start) // _MICROSECOND) * meter.slots
    for each in interruptions:
        hour = _hour_with_usage(each.time, hours)
        if hour is not None:
            found[hour].interruptions[each.reason, each.in_place].append(each)
    return found


def _hour_with_usage(time: datetime, hours: Sequence[UsageHour]) -> datetime | None:
    """Return the last usage hour that began by `time`, else the first one: a second that ends an hour has none."""
    before = [row.hour for row in hours if row.hour <= time]
    return before[-1] if before else next((row.hour for row in hours), None)


def _parts(usage: UsageHour, found: _Hour) -> Iterator[UsagePart]:
    keys = list(found.parts) or [_UNATTRIBUTED]
    weights = list(found.parts.values()) or [1]
    divided = zip(keys, divide(usage.slot_seconds, weights), divide(usage.cost, weights), strict=True)
    for (activity, phase, cause), slot_seconds, cost in divided:
        if slot_seconds or cost:
            yield UsagePart(
                usage=usage, team_id=usage.team_id, activity=activity, phase=phase, cause=cause,
                slot_seconds=slot_seconds, cost=cost,
            )  # fmt: skip


def _interruptions(usage: UsageHour, found: _Hour) -> Iterator[UsageInterruption]:
    reasons = list(found.refunds) or [""]
    refunds = dict(zip(reasons, divide(usage.fault_cost, list(found.refunds.values()) or [1]), strict=True))
    keys: Iterable[tuple[str, bool]] = {**found.interruptions, **{(reason, False): [] for reason in refunds}}
    for reason, in_place in keys:
        own = found.interruptions.get((reason, in_place), [])
        refunded = 0 if in_place else refunds.get(reason, 0)
        if own or refunded:
            yield UsageInterruption(
                usage=usage, team_id=usage.team_id, reason=reason, in_place=in_place, count=len(own), refunded=refunded,
                steps_lost=sum(each.steps_lost or 0 for each in own),
            )  # fmt: skip
