"""Puts what came in small batches where it is read from: series into their blocks, log lines into larger chunks.

Compaction holds the lock of the job's progress row, so that nothing is compacted twice. Ingest folds each time
enough has come; `fold_due` is the sweeper for what ended attempts and older versions left loose.
"""

import time
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np
from django.db import transaction
from django.db.models import QuerySet

from athanor.jobs.models import Attempt
from athanor.jobs.states import AttemptStatus
from athanor.telemetry import codec, logs, pyramid
from athanor.telemetry.codec import Matrix
from athanor.telemetry.models import LogChunk, MetricBlock, MetricChunk, MetricSegment, MetricSeries, Progress

ROWS = 512  # minimum number of steps per compaction of a running job
LINES = 500
MOST_CHUNKS = 1024  # folded in one transaction
LONGEST_NAME = 200
SWEEP_SECONDS = 60.0

Row = tuple[int, float, dict[str, float | None]]  # step, unix time, values


def fold_points(attempt: Attempt, progress: Progress, fresh: list[Row], generation: int) -> None:
    """Move the attempt's loose points, and then the `fresh` ones, into their series. Counts them off `progress`."""
    loose = (
        list(MetricChunk.objects.filter(attempt=attempt).order_by("id")[:MOST_CHUNKS]) if progress.loose_rows else []
    )
    by_generation: dict[int, list[Row]] = defaultdict(list)
    for chunk in loose:
        by_generation[chunk.generation] += codec.unpack_rows(chunk.content)
    by_generation[generation] += fresh
    for number, rows in by_generation.items():
        if rows:
            _extend_series(attempt, number, columns_of(rows))
    if loose:
        MetricChunk.objects.filter(attempt=attempt, id__lte=loose[-1].id).delete()
    progress.loose_rows = max(0, progress.loose_rows - sum(chunk.count for chunk in loose))


def fold_lines(attempt: Attempt, progress: Progress) -> None:
    """Make large searchable chunks of the attempt's loose ones. Counts them off `progress`."""
    loose = list(LogChunk.objects.filter(attempt=attempt, signature=None).order_by("first_line")[:MOST_CHUNKS])
    rows: list[Any] = []
    chunks: list[LogChunk] = []
    for position, chunk in enumerate(loose):
        rows += codec.unpack_rows(chunk.content)
        following = loose[position + 1].first_line if position + 1 < len(loose) else -1
        if following != chunk.last_line + 1:  # another attempt's lines are between
            chunks += line_chunks(attempt, rows, chunk.last_line + 1 - len(rows))
            rows = []
    LogChunk.objects.filter(id__in=[chunk.id for chunk in loose]).delete()
    LogChunk.objects.bulk_create(chunks)
    progress.loose_lines = max(0, progress.loose_lines - sum(chunk.count for chunk in loose))


def line_chunks(attempt: Attempt, rows: list[Any], first_line: int) -> list[LogChunk]:
    """Searchable chunks of bounded size."""
    made = []
    for part in logs.parts(rows):
        last_line = first_line + len(part) - 1
        made.append(
            LogChunk(
                attempt=attempt,
                content=codec.pack_rows(part),
                count=len(part),
                first_line=first_line,
                last_line=last_line,
                ranks=sorted({rank for _, rank, _, _ in part}),
                signature=logs.signature(text for _, _, _, text in part),
            )
        )
        first_line = last_line + 1
    return made


def loose_ends() -> tuple[QuerySet[MetricChunk], QuerySet[LogChunk]]:
    """Small batches, of metrics and of logs, that ended attempts have left."""
    ended = Attempt.objects.filter(status=AttemptStatus.ENDED.value)
    lines = LogChunk.objects.filter(signature=None)
    return MetricChunk.objects.filter(attempt__in=ended), lines.filter(attempt__in=ended)


def _attempts_of(chunks: QuerySet[Any]) -> QuerySet[Any, str]:
    return chunks.order_by().values_list("attempt_id", flat=True).distinct()[:1000]


def fold_due(seconds: float = SWEEP_SECONDS / 2) -> int:
    """Fold what ended attempts, and those with very many chunks, left loose, for so long. Returns how many attempts."""
    began = time.monotonic()
    folded = 0
    metrics, lines = loose_ends()
    for kind, attempt_ids in (("metrics", _attempts_of(metrics)), ("logs", _attempts_of(lines))):
        for attempt_id in attempt_ids:
            if time.monotonic() - began > seconds:
                return folded
            _fold_attempt(attempt_id, kind)
            folded += 1
    return folded


def columns_of(rows: Iterable[Row]) -> dict[str, Matrix]:
    """Points by series. A value that is not finite is a gap, and kept nowhere."""
    series: dict[str, list[tuple[int, float, float]]] = {}
    for step, at, values in rows:
        micros = round(at * 1e6)
        for name, value in values.items():
            if value is not None:
                series.setdefault(name[:LONGEST_NAME], []).append((step, micros, value))
    columns = {name: np.array(points, dtype=np.float64).T for name, points in series.items()}
    return {name: points[:, np.isfinite(points[pyramid.VALUE])] for name, points in columns.items()}


def segment_of(attempt: Attempt, generation: int, first_step: int) -> MetricSegment:
    row, _ = MetricSegment.objects.get_or_create(
        attempt=attempt, generation=generation, defaults={"first_step": first_step}
    )
    return row


def levels_of(tail: bytes | memoryview | None) -> list[Matrix]:
    if tail is None:
        return [pyramid.empty(level) for level in range(pyramid.LEVELS)]
    return [codec.unpack(tail, level, pyramid.RISING[level]) for level in range(pyramid.LEVELS)]


def _extend_series(attempt: Attempt, generation: int, columns: dict[str, Matrix]) -> None:
    """One read and two writes, however many series there are."""
    columns = {name: points for name, points in columns.items() if points.shape[1]}
    if not columns:
        return
    rows = MetricSeries.objects.filter(segment__attempt=attempt, segment__generation=generation, name__in=list(columns))
    existing = {row.name: row for row in rows}
    segment_id = next((row.segment_id for row in existing.values()), None)
    if segment_id is None:
        first_step = min(int(points[pyramid.STEP].min()) for points in columns.values())
        segment_id = segment_of(attempt, generation, first_step).pk
    changed: list[MetricSeries] = []
    full: list[tuple[str, int, Matrix]] = []
    for name, points in columns.items():
        row = existing.get(name) or MetricSeries(
            segment_id=segment_id, name=name, points=0, first_step=int(points[pyramid.STEP].min()), last_step=0
        )
        tails = []
        for level, before in enumerate(levels_of(row.tail if row.points else None)):
            sealed, tail = _sealed(pyramid.extend(before, level, points), level)
            full += [(name, level, block) for block in sealed]
            tails.append(tail)
        row.tail = codec.pack(tails, pyramid.RISING)
        row.points += points.shape[1]
        row.first_step = min(row.first_step, int(points[pyramid.STEP].min()))
        row.last_step = max(row.last_step, int(points[pyramid.STEP].max()))
        changed.append(row)
    saved = MetricSeries.objects.bulk_create(
        changed,
        update_conflicts=True,
        unique_fields=["segment", "name"],
        update_fields=["points", "first_step", "last_step", "tail"],
    )
    ids = {row.name: row.pk for row in saved}
    MetricBlock.objects.bulk_create(
        MetricBlock(
            series_id=ids[name],
            level=level,
            first_step=int(block[0].min()),
            last_step=int(block[pyramid.LAST_STEP if level else pyramid.STEP].max()),
            content=codec.pack([block], [pyramid.RISING[level]]),
        )
        for name, level, block in full
    )


def _sealed(matrix: Matrix, level: int) -> tuple[list[Matrix], Matrix]:
    """Return the full blocks of a level, and the rest. Buckets that are not full remain."""
    columns = matrix.shape[1]
    if level and columns and matrix[pyramid.COUNT, -1] < pyramid.size_of(level):
        columns -= 1
    cuts = pyramid.blocks(columns, pyramid.BLOCK_COLUMNS[level])
    return [matrix[:, start:stop] for start, stop in cuts], matrix[:, cuts[-1][1] if cuts else 0 :]


def _fold_attempt(attempt_id: str, kind: str) -> None:
    with transaction.atomic():
        attempt = Attempt.objects.get(pk=attempt_id)
        progress = Progress.objects.select_for_update(no_key=True).get(pk=attempt.job_id)
        if kind == "metrics":
            fold_points(attempt, progress, [], 0)
        else:
            fold_lines(attempt, progress)
        progress.save(update_fields=["loose_rows", "loose_lines"])
