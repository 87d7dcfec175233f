"""Retention after a job's end: the finest resolution of its longest series is removed first, then logs.

A resolution is removed only if the next one still fills a chart, so short series, which are most and cost least, remain
complete, and no curve disappears. Log lines remain in the encrypted archive of their attempt (dispatch/finalise.py).
"""

import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from athanor.telemetry import codec, rollups, system
from athanor.telemetry.compaction import levels_of
from athanor.telemetry.models import LogChunk, MetricBlock, MetricSeries

FULL_CHART = 4096  # buckets that the next resolution has at least
ROWS = 200  # in one transaction


@dataclass(frozen=True)
class Policy:
    """Retention in days after a job's end; 0 means forever. `metrics` has one value for each level.

    The coarsest level has none: it is stored as long as its job.
    """

    metrics: tuple[int, ...]
    logs: int


def policy() -> Policy:
    """Return the configured retention (ATHANOR_METRICS_DAYS_*, ATHANOR_LOGS_DAYS)."""
    kept = settings.ATHANOR
    return Policy((kept.metrics_days_1x, kept.metrics_days_16x, kept.metrics_days_256x), kept.logs_days)


def sweep(seconds: float = 30.0, asked: Policy | None = None) -> tuple[int, int]:
    """Remove expired data for at most `seconds`. Return (series and system intervals
    thinned out, log chunks removed)."""
    chosen, began, now = asked or policy(), time.monotonic(), timezone.now()

    def in_time() -> bool:
        return time.monotonic() - began < seconds

    thinned = removed = 0
    for level, days in enumerate(chosen.metrics):
        while days and in_time() and (count := _thin_out(level, now - timedelta(days=days))):
            thinned += count
    while chosen.logs and in_time() and (count := _remove_lines(now - timedelta(days=chosen.logs))):
        removed += count
    while in_time() and (count := system.coarsen()):
        thinned += count
    return thinned, removed


def due(level: int, ended_before: datetime) -> QuerySet[MetricSeries]:
    """Return series that still have `level`, of jobs that ended before `ended_before`, long enough to do without it."""
    return MetricSeries.objects.filter(
        finest_level__lte=level,
        points__gte=FULL_CHART * rollups.size_of(level + 1),
        segment__attempt__job__finished_at__lt=ended_before,
    )


def overdue() -> list[tuple[QuerySet[Any], str]]:
    """Return rows beyond their retention, with the field for the end of their job."""
    chosen, now = policy(), timezone.now()
    rows: list[tuple[QuerySet[Any], str]] = [
        (due(level, now - timedelta(days=days)), "segment__attempt__job__finished_at")
        for level, days in enumerate(chosen.metrics)
        if days
    ]
    rows.append((system.overdue(), "time"))
    if chosen.logs:
        rows.append((_old_lines(now - timedelta(days=chosen.logs)), "attempt__job__finished_at"))
    return rows


def _thin_out(level: int, ended_before: datetime) -> int:
    with transaction.atomic():
        rows = list(due(level, ended_before).select_for_update(of=("self",), skip_locked=True, no_key=True)[:ROWS])
        for row in rows:
            tails = levels_of(row.tail)
            tails[: level + 1] = [rollups.empty(finer) for finer in range(level + 1)]
            row.tail = codec.pack(tails, rollups.INCREASING_ROWS)
            row.finest_level = level + 1
            row.save(update_fields=["tail", "finest_level"])
        MetricBlock.objects.filter(series__in=[row.pk for row in rows], level__lte=level).delete()
    return len(rows)


def _old_lines(ended_before: datetime) -> QuerySet[LogChunk]:
    """Return expired log chunks of attempts with an archived log; chunks without an archive remain."""
    return LogChunk.objects.filter(attempt__job__finished_at__lt=ended_before, attempt__artifacts__kind="log")


def _remove_lines(ended_before: datetime) -> int:
    old = _old_lines(ended_before).values_list("pk", flat=True)[:ROWS]
    return LogChunk.objects.filter(pk__in=list(old)).delete()[0]
