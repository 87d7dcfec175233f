"""What attempts last said of themselves. Curves are read by curves.py, lines by logs.py.

The caller has already made sure that the job may be seen.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import F, Max, Q
from django.utils import timezone

from athanor.jobs.models import Attempt
from athanor.jobs.states import HOLDING
from athanor.telemetry.models import Heartbeat, MetricChunk, MetricSeries, Progress

LIVE = tuple(status.value for status in HOLDING)


@dataclass(frozen=True)
class Told:
    """The newest numbers of a job, and what of its spec gives them a meaning."""

    job_id: str
    team_id: str
    steps_total: int
    tokens_per_step: int
    progress: Progress


def newest_progress(job_ids: Collection[str], team_ids: Collection[str], since: datetime | None) -> list[Told]:
    """Of these jobs and of the live jobs of these teams, what was heard since then; oldest first."""
    rows = Progress.objects.filter(
        Q(job_id__in=list(job_ids)) | Q(job__team_id__in=list(team_ids), job__status__in=LIVE)
    )
    if since is not None:
        rows = rows.filter(updated_at__gte=since)
    spec = "job__resolved_spec__training__"
    rows = rows.annotate(
        team_id=F("job__team_id"), steps=F(f"{spec}steps"), tokens_per_step=F(f"{spec}tokens_per_step")
    )
    return [Told(row.job_id, row.team_id, row.steps, row.tokens_per_step, row) for row in rows.order_by("updated_at")]


def last_heartbeat(attempt: Attempt) -> datetime | None:
    newest: datetime | None = Heartbeat.objects.filter(attempt=attempt).aggregate(newest=Max("received_at"))["newest"]
    return newest


def is_silent(attempt: Attempt, seconds: float) -> bool:
    """Whether an attempt that was heard before has not been heard for that long."""
    newest = last_heartbeat(attempt)
    return newest is not None and timezone.now() - newest > timedelta(seconds=seconds)


def has_trained(attempt: Attempt) -> bool:
    """Whether the attempt has finished a step, or is past its start-up."""
    started = Heartbeat.objects.filter(attempt=attempt, step__gte=0).exists()
    return (
        started
        or MetricChunk.objects.filter(attempt=attempt, last_step__gte=1).exists()
        or MetricSeries.objects.filter(segment__attempt=attempt, last_step__gte=1).exists()
    )
