"""What attempts last said of themselves. Curves are read by curves.py, lines by logs.py.

The caller has already made sure that the job may be seen.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import DurationField, ExpressionWrapper, F, Max, Q
from django.db.models.functions import Now

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


def silence(attempts: Collection[str]) -> dict[str, timedelta]:
    """How long ago each was heard last, by the database's clock; without those that never were."""
    heard = Heartbeat.objects.filter(attempt__in=attempts).values_list("attempt_id")
    return dict(heard.annotate(ago=ExpressionWrapper(Now() - Max("received_at"), DurationField())))


def trained_among(attempts: Collection[str]) -> frozenset[str]:
    """Those that have finished a step, or are past their start-up."""
    beating = Heartbeat.objects.filter(attempt__in=attempts, step__gte=0).values_list("attempt_id", flat=True)
    loose = MetricChunk.objects.filter(attempt__in=attempts, last_step__gte=1).values_list("attempt_id", flat=True)
    folded = MetricSeries.objects.filter(segment__attempt__in=attempts, last_step__gte=1)
    return frozenset(beating) | frozenset(loose) | frozenset(folded.values_list("segment__attempt_id", flat=True))
