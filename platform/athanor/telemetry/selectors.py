"""Reads of series and logs. The caller has already made sure that the job may be seen."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db.models import F, Max, Q
from django.utils import timezone

from athanor.jobs.models import Attempt, Job
from athanor.jobs.states import HOLDING
from athanor.telemetry.downsample import downsample
from athanor.telemetry.ingest import decompressed
from athanor.telemetry.models import Heartbeat, LogChunk, MetricChunk, Progress

SeriesPoint = tuple[int, float, float]  # step, value, unix time


LIVE = tuple(status.value for status in HOLDING)


@dataclass(frozen=True)
class Told:
    """The newest numbers of a job, and what of its spec gives them a meaning."""

    job_id: str
    team_id: str
    steps_total: int
    tokens_per_step: int
    progress: Progress


@dataclass(frozen=True)
class Line:
    cursor: int
    time: datetime
    attempt: int
    rank: int
    stream: str
    text: str


def series(job: Job, names: set[str] | None, *, limit: int, after_step: int = -1) -> dict[str, list[SeriesPoint]]:
    """The spliced series of a job, downsampled to `limit` points each. None: all names."""
    chunks = MetricChunk.objects.filter(attempt__job=job).order_by("attempt__number", "generation", "id")
    full: dict[str, list[SeriesPoint]] = {}
    newest_writer = None
    for chunk in chunks.annotate(number=F("attempt__number")):
        writer = (chunk.number, chunk.generation)
        if writer != newest_writer:
            newest_writer = writer
            _rewind(full, chunk.first_step)
        for step, time, values in decompressed(chunk.content):
            for name, value in values.items():
                if value is not None and (names is None or name in names):
                    full.setdefault(name, []).append((step, value, time))
    return {
        name: downsample([point for point in points if point[0] > after_step], limit, value=1)
        for name, points in full.items()
    }


def lines(
    job: Job,
    *,
    after: int = -1,
    limit: int = 500,
    tail: int | None = None,
    attempt: int | None = None,
    rank: int | None = None,
    grep: str = "",
) -> list[Line]:
    """Log lines with a cursor greater than `after`; with `tail`, only the last that many of them."""
    chunks = LogChunk.objects.filter(attempt__job=job, first_line__gt=after - F("count"))
    if attempt is not None:
        chunks = chunks.filter(attempt__number=attempt)
    chunks = chunks.order_by("first_line" if tail is None else "-first_line").annotate(number=F("attempt__number"))
    wanted = limit if tail is None else min(tail, limit)
    found: list[Line] = []
    for chunk in chunks.iterator(chunk_size=50):
        here = [
            Line(chunk.first_line + index, datetime.fromtimestamp(time, UTC), chunk.number, line_rank, stream, text)
            for index, (time, line_rank, stream, text) in enumerate(decompressed(chunk.content))
            if chunk.first_line + index > after and (rank is None or line_rank == rank) and grep in text
        ]
        found = found + here if tail is None else here + found
        if len(found) >= wanted:
            break
    return found[:wanted] if tail is None else found[-wanted:] if wanted else []


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
    return started or MetricChunk.objects.filter(attempt=attempt, last_step__gte=1).exists()


def _rewind(full: dict[str, list[SeriesPoint]], first_step: int) -> None:
    """A new generation starts at `first_step`: what an earlier one drew from there on is done again."""
    for points in full.values():
        while points and points[-1][0] >= first_step:
            points.pop()
