"""Compaction of ingested batches: metric points into the blocks of their series, log lines into larger chunks.

Compaction locks the job's progress row, so that nothing is compacted twice. Ingest compacts whenever enough rows are
unflushed; the periodic `compact_due` compacts what ended attempts left.
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
from athanor.telemetry import codec, logs, rollups
from athanor.telemetry.codec import Matrix
from athanor.telemetry.models import LogChunk, MetricBlock, MetricChunk, MetricSegment, MetricSeries, Progress

ROWS = 512  # minimum number of steps per compaction of a running job
LINES = 500
MAX_CHUNKS = 1024  # maximum number of chunks compacted in one transaction
MAX_NAME_LENGTH = 200
SWEEP_SECONDS = 60.0

Row = tuple[int, float, dict[str, float | None]]  # step, unix time, values


def compact_points(attempt: Attempt, progress: Progress, fresh: list[Row], generation: int) -> None:
    """Move the attempt's unflushed points, then the `fresh` ones, into their series.

    Subtract them from `progress.loose_rows`; the caller saves `progress`.
    """
    unflushed = (
        list(MetricChunk.objects.filter(attempt=attempt).order_by("id")[:MAX_CHUNKS]) if progress.loose_rows else []
    )
    by_generation: dict[int, list[Row]] = defaultdict(list)
    for chunk in unflushed:
        by_generation[chunk.generation] += codec.unpack_rows(chunk.content)
    by_generation[generation] += fresh
    for number, rows in by_generation.items():
        if rows:
            _extend_series(attempt, number, columns_of(rows))
    if unflushed:
        MetricChunk.objects.filter(attempt=attempt, id__lte=unflushed[-1].id).delete()
    progress.loose_rows = max(0, progress.loose_rows - sum(chunk.count for chunk in unflushed))


def compact_lines(attempt: Attempt, progress: Progress) -> None:
    """Merge the attempt's unflushed log chunks into large searchable ones.

    Subtract their lines from `progress.loose_lines`; the caller saves `progress`.
    """
    unflushed = list(LogChunk.objects.filter(attempt=attempt, signature=None).order_by("first_line")[:MAX_CHUNKS])
    rows: list[Any] = []
    chunks: list[LogChunk] = []
    for position, chunk in enumerate(unflushed):
        rows += codec.unpack_rows(chunk.content)
        following = unflushed[position + 1].first_line if position + 1 < len(unflushed) else -1
        if following != chunk.last_line + 1:  # another attempt's lines are between
            chunks += line_chunks(attempt, rows, chunk.last_line + 1 - len(rows))
            rows = []
    LogChunk.objects.filter(id__in=[chunk.id for chunk in unflushed]).delete()
    LogChunk.objects.bulk_create(chunks)
    progress.loose_lines = max(0, progress.loose_lines - sum(chunk.count for chunk in unflushed))


def line_chunks(attempt: Attempt, rows: list[Any], first_line: int) -> list[LogChunk]:
    """Return unsaved searchable chunks of bounded size for consecutive rows from `first_line` on."""
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


def unflushed_chunks() -> tuple[QuerySet[MetricChunk], QuerySet[LogChunk]]:
    """Return the metric chunks and the log chunks of ended attempts that are not compacted yet."""
    ended = Attempt.objects.filter(status=AttemptStatus.ENDED.value)
    lines = LogChunk.objects.filter(signature=None)
    return MetricChunk.objects.filter(attempt__in=ended), lines.filter(attempt__in=ended)


def _attempts_of(chunks: QuerySet[Any]) -> QuerySet[Any, str]:
    return chunks.order_by().values_list("attempt_id", flat=True).distinct()[:1000]


def compact_due(seconds: float = SWEEP_SECONDS / 2) -> int:
    """Compact the unflushed chunks of ended attempts for at most `seconds`. Return the number of compactions."""
    began = time.monotonic()
    compacted = 0
    metrics, lines = unflushed_chunks()
    for kind, attempt_ids in (("metrics", _attempts_of(metrics)), ("logs", _attempts_of(lines))):
        for attempt_id in attempt_ids:
            if time.monotonic() - began > seconds:
                return compacted
            _compact_attempt(attempt_id, kind)
            compacted += 1
    return compacted


def columns_of(rows: Iterable[Row]) -> dict[str, Matrix]:
    """Return, by series name, the rows step, time (microseconds) and value; values that are not finite are dropped."""
    series: dict[str, list[tuple[int, float, float]]] = {}
    for step, at, values in rows:
        micros = round(at * 1e6)
        for name, value in values.items():
            if value is not None:
                series.setdefault(name[:MAX_NAME_LENGTH], []).append((step, micros, value))
    columns = {name: np.array(points, dtype=np.float64).T for name, points in series.items()}
    return {name: points[:, np.isfinite(points[rollups.VALUE])] for name, points in columns.items()}


def segment_of(attempt: Attempt, generation: int, first_step: int) -> MetricSegment:
    """Return the segment of this attempt and generation; create it if it does not exist."""
    row, _ = MetricSegment.objects.get_or_create(
        attempt=attempt, generation=generation, defaults={"first_step": first_step}
    )
    return row


def levels_of(tail: bytes | memoryview | None) -> list[Matrix]:
    """Decode the tail of each level; without a tail, return empty matrices."""
    if tail is None:
        return [rollups.empty(level) for level in range(rollups.LEVELS)]
    return [codec.unpack(tail, level, rollups.INCREASING_ROWS[level]) for level in range(rollups.LEVELS)]


def _extend_series(attempt: Attempt, generation: int, columns: dict[str, Matrix]) -> None:
    """Append the points to their series: one read and two writes for any number of series."""
    columns = {name: points for name, points in columns.items() if points.shape[1]}
    if not columns:
        return
    rows = MetricSeries.objects.filter(segment__attempt=attempt, segment__generation=generation, name__in=list(columns))
    existing = {row.name: row for row in rows}
    segment_id = next((row.segment_id for row in existing.values()), None)
    if segment_id is None:
        first_step = min(int(points[rollups.STEP].min()) for points in columns.values())
        segment_id = segment_of(attempt, generation, first_step).pk
    changed: list[MetricSeries] = []
    full: list[tuple[str, int, Matrix]] = []
    for name, points in columns.items():
        row = existing.get(name) or MetricSeries(
            segment_id=segment_id, name=name, points=0, first_step=int(points[rollups.STEP].min()), last_step=0
        )
        tails = []
        for level, before in enumerate(levels_of(row.tail if row.points else None)):
            full_blocks, tail = _split_full_blocks(rollups.extend(before, level, points), level)
            full += [(name, level, block) for block in full_blocks]
            tails.append(tail)
        row.tail = codec.pack(tails, rollups.INCREASING_ROWS)
        row.points += points.shape[1]
        row.first_step = min(row.first_step, int(points[rollups.STEP].min()))
        row.last_step = max(row.last_step, int(points[rollups.STEP].max()))
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
            last_step=int(block[rollups.LAST_STEP if level else rollups.STEP].max()),
            content=codec.pack([block], [rollups.INCREASING_ROWS[level]]),
        )
        for name, level, block in full
    )


def _split_full_blocks(matrix: Matrix, level: int) -> tuple[list[Matrix], Matrix]:
    """Return the full blocks of a level, and the rest. Buckets that are not full remain."""
    columns = matrix.shape[1]
    if level and columns and matrix[rollups.COUNT, -1] < rollups.size_of(level):
        columns -= 1
    cuts = rollups.blocks(columns, rollups.BLOCK_COLUMNS[level])
    return [matrix[:, start:stop] for start, stop in cuts], matrix[:, cuts[-1][1] if cuts else 0 :]


def _compact_attempt(attempt_id: str, kind: str) -> None:
    with transaction.atomic():
        attempt = Attempt.objects.get(pk=attempt_id)
        progress = Progress.objects.select_for_update(no_key=True).get(pk=attempt.job_id)
        if kind == "metrics":
            compact_points(attempt, progress, [], 0)
        else:
            compact_lines(attempt, progress)
        progress.save(update_fields=["loose_rows", "loose_lines"])
