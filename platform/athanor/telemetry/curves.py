"""Curves of many series of many jobs, each read at the coarsest level that has a point per pixel.

The number of queries is constant. A later segment (worker group, attempt) hides earlier ones from its first step on. A
bucket that crosses such a cut, or an end of the range, is replaced by the buckets of the next finer level, so a curve
ends where it was cut, to a fraction of a pixel.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from django.db import connection, transaction
from django.db.models import Q

from athanor.telemetry import codec, rollups
from athanor.telemetry.codec import Matrix
from athanor.telemetry.compaction import columns_of
from athanor.telemetry.models import MetricBlock, MetricChunk, MetricSegment, MetricSeries

FAR = 2**62
Key = tuple[str, str]  # job, series
Blocks = dict[tuple[int, int], list[bytes | memoryview]]  # contents, by series and level


@dataclass(frozen=True)
class Asked:
    """The requested curves, from `from_step` to `to_step` inclusive. `names`: None for all series.

    `attempt`: draw only this attempt, including the steps that a later one repeated.
    """

    jobs: Sequence[str]
    names: frozenset[str] | None = None
    points: int = 500
    from_step: int = 0
    to_step: int = FAR
    attempt: int | None = None


@dataclass
class _Segment:
    """A segment's rows and its visible steps: from `low` up to, but not including, `high`."""

    id: int
    job: str
    attempt_id: str
    generation: int
    first_step: int
    low: int = 0
    high: int = FAR
    series: list[MetricSeries] = field(default_factory=list)
    unflushed: dict[str, Matrix] = field(default_factory=dict)


def curves(asked: Asked) -> dict[Key, Matrix]:
    """Return, by (job, series), real points as rows (step, microseconds, value).

    Each series has at most `asked.points` points, which include its extremes.
    """
    found: dict[Key, list[Matrix]] = defaultdict(list)
    for segment, name, level, stretch in _stretches(asked):
        points = stretch if level == 0 else rollups.as_points(stretch)
        inside = (points[rollups.STEP] >= segment.low) & (points[rollups.STEP] < segment.high)
        found[segment.job, name].append(points[:, inside])
    joined = {key: _in_order(np.concatenate(parts, axis=1), rollups.STEP) for key, parts in found.items()}
    return {key: rollups.downsample(points, asked.points) for key, points in joined.items() if points.shape[1]}


def averages(asked: Asked) -> dict[Key, Matrix]:
    """Return, by (job, series), at most `asked.points` buckets (rollups.py). Buckets that cross a cut are omitted."""
    found: dict[Key, list[Matrix]] = defaultdict(list)
    for segment, name, level, stretch in _stretches(asked):
        buckets = stretch if level else rollups.as_buckets(stretch)
        inside = (buckets[rollups.FIRST_STEP] >= segment.low) & (buckets[rollups.LAST_STEP] < segment.high)
        found[segment.job, name].append(buckets[:, inside])
    joined = {key: _in_order(np.concatenate(parts, axis=1), rollups.LAST_STEP) for key, parts in found.items()}
    return {key: rollups.average(buckets, asked.points) for key, buckets in joined.items() if buckets.shape[1]}


def names_of(jobs: Sequence[str]) -> list[str]:
    """Return the names of all series of these jobs, sorted."""
    kept = MetricSeries.objects.filter(segment__attempt__job_id__in=jobs).order_by()
    names = set(kept.values_list("name", flat=True).distinct())
    for content in MetricChunk.objects.filter(attempt__job_id__in=jobs).values_list("content", flat=True):
        for _, _, values in codec.unpack_rows(content):
            names.update(values)
    return sorted(names)


@contextmanager
def _one_moment() -> Iterator[None]:
    """Give all queries of the block one snapshot: points compacted meanwhile are neither missed nor repeated."""
    if connection.in_atomic_block:
        yield
        return
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        yield


def _stretches(asked: Asked) -> Iterator[tuple[_Segment, str, int, Matrix]]:
    """Yield the segment, series name, level and columns of everything to draw, in the order of the segments."""
    with _one_moment():
        segments = _segments(asked)
        _add_series(segments, asked)
        _add_unflushed(segments, asked)
        levels = _levels(segments, asked.points)
        blocks = _blocks(segments, levels)
    for segment in segments:
        for row in segment.series:
            level = max(levels[segment.job, row.name], row.finest_level)
            stretch = _level_of(row, level, blocks)
            if level > row.finest_level:
                divided = _divided(stretch, segment)
                if divided.any():
                    yield segment, row.name, level - 1, _within(_level_of(row, level - 1, blocks), stretch[:, divided])
                    stretch = stretch[:, ~divided]
            yield segment, row.name, level, stretch
        for name, points in segment.unflushed.items():
            yield segment, name, 0, points


def _level_of(row: MetricSeries, level: int, blocks: Blocks) -> Matrix:
    """Return the data of a level: the full blocks, then the tail."""
    increasing = rollups.INCREASING_ROWS[level]
    parts = [codec.unpack(content, 0, increasing) for content in blocks.get((row.pk, level), ())]
    return np.concatenate([*parts, codec.unpack(row.tail, level, increasing)], axis=1)


def _divided(buckets: Matrix, segment: _Segment) -> np.ndarray:
    """Return a mask of the buckets that cross an end of the segment's visible steps."""
    first, last = buckets[rollups.FIRST_STEP], buckets[rollups.LAST_STEP]
    divided: np.ndarray = ((first < segment.low) & (last >= segment.low)) | (
        (first < segment.high) & (last >= segment.high)
    )
    return divided


def _within(finer: Matrix, buckets: Matrix) -> Matrix:
    """Return the columns of a finer level, or the points, that these buckets summarise."""
    last = finer[rollups.LAST_STEP] if finer.shape[0] == rollups.BUCKET_ROWS else finer[rollups.STEP]
    chosen = np.zeros(finer.shape[1], dtype=bool)
    for bucket in buckets.T:
        chosen |= (finer[0] >= bucket[rollups.FIRST_STEP]) & (last <= bucket[rollups.LAST_STEP])
    return finer[:, chosen]


def _segments(asked: Asked) -> list[_Segment]:
    """Return the segments visible in the range, in order for each job, each cut where a later one begins."""
    rows = MetricSegment.objects.filter(attempt__job_id__in=asked.jobs)
    if asked.attempt is not None:
        rows = rows.filter(attempt__number=asked.attempt)
    columns = ("id", "attempt__job_id", "attempt_id", "generation", "first_step")
    ordered = rows.order_by("attempt__job_id", "attempt__number", "generation").values_list(*columns)
    segments = [_Segment(*row) for row in ordered]
    high, job = FAR, ""
    for segment in reversed(segments):
        if segment.job != job:
            high, job = FAR, segment.job
        segment.low, segment.high = asked.from_step, min(high, asked.to_step + 1)
        high = min(high, segment.first_step)
    return [segment for segment in segments if segment.first_step < segment.high and segment.low < segment.high]


def _add_series(segments: list[_Segment], asked: Asked) -> None:
    by_id = {segment.id: segment for segment in segments}
    rows = MetricSeries.objects.filter(segment_id__in=list(by_id), last_step__gte=asked.from_step)
    if asked.names is not None:
        rows = rows.filter(name__in=asked.names)
    for row in rows:
        if row.first_step < by_id[row.segment_id].high:
            by_id[row.segment_id].series.append(row)


def _add_unflushed(segments: list[_Segment], asked: Asked) -> None:
    by_place = {(segment.attempt_id, segment.generation): segment for segment in segments}
    rows = MetricChunk.objects.filter(
        attempt_id__in={segment.attempt_id for segment in segments}, last_step__gte=asked.from_step
    )
    unflushed: dict[tuple[str, int], list[Any]] = defaultdict(list)
    for attempt_id, generation, content in rows.order_by("id").values_list("attempt_id", "generation", "content"):
        if (attempt_id, generation) in by_place:
            unflushed[attempt_id, generation] += codec.unpack_rows(content)
    for place, found in unflushed.items():
        columns = columns_of(found)
        wanted = columns if asked.names is None else asked.names & columns.keys()
        by_place[place].unflushed = {name: columns[name] for name in wanted}


def _levels(segments: list[_Segment], wanted: int) -> dict[Key, int]:
    """Return, for each curve, the coarsest level with about `wanted` visible buckets or more."""
    points: dict[Key, float] = defaultdict(float)
    for segment in segments:
        for row in segment.series:
            span = row.last_step + 1 - row.first_step
            shown = min(row.last_step + 1, segment.high) - max(row.first_step, segment.low)
            points[segment.job, row.name] += row.points * max(0, shown) / span
    return {key: rollups.level_for(count, wanted) for key, count in points.items()}


def _blocks(segments: list[_Segment], levels: dict[Key, int]) -> Blocks:
    """Return the full blocks to draw, in order, with those of the next finer level at the cuts.

    Short series have none.
    """
    chosen = Q()
    whole: dict[int, list[int]] = defaultdict(list)
    for segment in segments:
        for row in segment.series:
            level = max(levels[segment.job, row.name], row.finest_level)
            if segment.low <= row.first_step and segment.high > row.last_step:
                if _has_blocks(row, level):
                    whole[level].append(row.pk)
                continue
            if _has_blocks(row, level):
                chosen |= Q(series=row, level=level, first_step__lt=segment.high, last_step__gte=segment.low)
            if level > row.finest_level and _has_blocks(row, level - 1):
                chosen |= _around(row, level, segment.low) | _around(row, level, segment.high)
    for level, ids in whole.items():
        chosen |= Q(series_id__in=ids, level=level)
    if not chosen:
        return {}
    found: Blocks = defaultdict(list)
    rows = MetricBlock.objects.filter(chosen).order_by("series_id", "level", "id")
    for series, level, content in rows.values_list("series_id", "level", "content"):
        found[series, level].append(content)
    return found


def _has_blocks(row: MetricSeries, level: int) -> bool:
    return row.points >= rollups.size_of(level) * rollups.BLOCK_COLUMNS[level]


def _around(row: MetricSeries, level: int, cut: int) -> Q:
    """Return the condition for blocks of the next finer level within about one bucket of `level` around the cut."""
    width = 2 + 2 * rollups.size_of(level) * (row.last_step + 1 - row.first_step) // row.points
    return Q(series=row, level=level - 1, first_step__lt=cut + width, last_step__gte=cut - width)


def _in_order(columns: Matrix, step: int) -> Matrix:
    """Sort points by step: steps rise within one writer, but not across writers or a rollback."""
    steps = columns[step]
    if steps.shape[0] < 2 or bool(np.all(steps[1:] >= steps[:-1])):
        return columns
    return columns[:, np.argsort(steps, kind="stable")]
