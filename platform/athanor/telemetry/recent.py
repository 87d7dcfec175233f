"""The last points of series of many jobs, for alert rules. Reads only the newest segment of each job.

The number of queries is constant.
"""

from collections import defaultdict
from collections.abc import Collection

import numpy as np
from django.db.models import F

from athanor.telemetry import codec, rollups
from athanor.telemetry.codec import Matrix
from athanor.telemetry.compaction import Row, columns_of
from athanor.telemetry.models import MetricBlock, MetricChunk, MetricSegment, MetricSeries


def last_points(job_ids: Collection[str], names: Collection[str], count: int) -> dict[tuple[str, str], Matrix]:
    """Return, by (job, series), up to `count` last points as rows (step, microseconds, value), in order.

    Points before the newest restart of a job's processes are omitted, as are values that are not finite.
    """
    newest = MetricSegment.objects.filter(attempt__job_id__in=list(job_ids))
    newest = newest.order_by("attempt__job_id", "-attempt__number", "-generation").distinct("attempt__job_id")
    segments = {
        segment: (job, attempt, generation)
        for segment, job, attempt, generation in newest.values_list("id", "attempt__job_id", "attempt_id", "generation")
    }
    found: dict[tuple[str, str], list[Matrix]] = defaultdict(list)
    stored = {row.pk: row for row in MetricSeries.objects.filter(segment_id__in=list(segments), name__in=list(names))}
    blocks = MetricBlock.objects.filter(
        series_id__in=list(stored), level=0, last_step__gt=F("series__last_step") - count
    )
    for series, content in blocks.order_by("id").values_list("series_id", "content"):
        key = (segments[stored[series].segment_id][0], stored[series].name)
        found[key].append(codec.unpack(content, 0, rollups.INCREASING_ROWS[0]))
    for row in stored.values():
        found[segments[row.segment_id][0], row.name].append(codec.unpack(row.tail, 0, rollups.INCREASING_ROWS[0]))
    by_place = {(attempt, generation): job for job, attempt, generation in segments.values()}
    chunks = MetricChunk.objects.filter(attempt_id__in={attempt for attempt, _ in by_place}).order_by("id")
    loose: dict[str, list[Row]] = defaultdict(list)
    for attempt, generation, content in chunks.values_list("attempt_id", "generation", "content"):
        if (attempt, generation) in by_place:
            loose[by_place[attempt, generation]] += codec.unpack_rows(content)
    for job, rows in loose.items():
        columns = columns_of(rows)
        for name in columns.keys() & set(names):
            found[job, name].append(columns[name])
    joined = {key: np.concatenate(parts, axis=1) for key, parts in found.items()}
    return {key: _last(points, count) for key, points in joined.items() if points.shape[1]}


def _last(points: Matrix, count: int) -> Matrix:
    return points[:, np.argsort(points[rollups.STEP], kind="stable")][:, -count:]
