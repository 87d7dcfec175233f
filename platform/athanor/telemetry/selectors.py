"""The newest reports of attempts. Curves are read by curves.py, log lines by logs.py.

The caller has checked that the user may see the jobs.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import DurationField, ExpressionWrapper, F, Max
from django.db.models.functions import Now

from athanor.jobs.models import Job
from athanor.jobs.states import HOLDING
from athanor.telemetry.models import Heartbeat, MetricChunk, MetricSeries, Progress
from trainer.contract.optimisation import batch_size_schedule

LIVE = tuple(status.value for status in HOLDING)
SILENT_AFTER = timedelta(seconds=60)
"""Without a heartbeat for longer, nothing is known of an attempt: twelve heartbeats."""


@dataclass(frozen=True)
class LiveProgress:
    """The progress of a job, and the numbers of its spec that relate it to the total."""

    job_id: str
    team_id: str
    steps_total: int
    tokens_seen: int
    progress: Progress


def newest_progress(job_ids: Collection[str], team_ids: Collection[str], since: datetime | None) -> list[LiveProgress]:
    """Return the progress of these jobs and of live jobs of these teams that changed at or after `since`.

    `since`: None for all.
    """
    live = Job.objects.filter(team_id__in=list(team_ids), status__in=LIVE).values("pk")
    # Two statements: one with OR would read every job's row.
    found = [*_live_progress(job_ids, since)] if job_ids else []
    if team_ids:
        known = {each.job_id for each in found}
        found += [each for each in _live_progress(live, since) if each.job_id not in known]
    return found


def _live_progress(job_ids: Any, since: datetime | None) -> Iterator[LiveProgress]:
    rows = Progress.objects.filter(job_id__in=job_ids)
    if since is not None:
        rows = rows.filter(updated_at__gte=since)
    training = "job__resolved_spec__training__"
    rows = rows.annotate(
        team_id=F("job__team_id"),
        steps=F(f"{training}steps"),
        evaluation=F("job__resolved_spec__evaluation"),
        replay=F("job__resolved_spec__replay"),
        export=F("job__resolved_spec__export"),
        tokens_per_step=F(f"{training}tokens_per_step"),
        sequence_length=F(f"{training}sequence_length"),
        batch_ramp=F(f"{training}batch_ramp"),
    )
    for row in rows:
        tasks_beside = (row.evaluation, row.replay, row.export)
        if row.steps is None or any(task is not None for task in tasks_beside):  # they train no model
            continue
        schedule = batch_size_schedule(row.tokens_per_step, row.sequence_length, row.batch_ramp)
        seen = schedule.sequences_before(max(row.step, 0)) * row.sequence_length
        yield LiveProgress(row.job_id, row.team_id, row.steps, seen, row)


def silence(attempts: Collection[str]) -> dict[str, timedelta]:
    """Return the time since the last heartbeat of each attempt, by the database's clock.

    Attempts without a heartbeat are omitted.
    """
    heard = Heartbeat.objects.filter(attempt__in=attempts).values_list("attempt_id")
    return dict(heard.annotate(ago=ExpressionWrapper(Now() - Max("received_at"), DurationField())))


def trained_among(attempts: Collection[str]) -> frozenset[str]:
    """Return the attempts with a heartbeat that reports a step, or with metrics of step 1 or later."""
    beating = Heartbeat.objects.filter(attempt__in=attempts, step__gte=0).values_list("attempt_id", flat=True)
    unflushed = MetricChunk.objects.filter(attempt__in=attempts, last_step__gte=1).values_list("attempt_id", flat=True)
    compacted = MetricSeries.objects.filter(segment__attempt__in=attempts, last_step__gte=1)
    return (
        frozenset(beating) | frozenset(unflushed) | frozenset(compacted.values_list("segment__attempt_id", flat=True))
    )
