"""Log lines: chunks of bounded size, search, and pages.

A chunk's signature has a bit for each three consecutive bytes of its text, so the database skips chunks that lack a bit
of the search text. A search that finds little within its limits returns the position that it has reached.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from django.db.models import F, Func, IntegerField, Q, QuerySet, Value

from athanor.jobs.models import Attempt, Job
from athanor.telemetry import codec
from athanor.telemetry.models import LogChunk

MAX_CHUNK_LINES = 500  # in one chunk
MAX_CHUNK_CHARACTERS = 64 * 1024
SIGNATURE_BITS = 8192
PAGE_CHUNKS = 16  # read per query
MAX_OPENED_CHUNKS = 512  # opened for one request
MAX_STORED_CHUNK_LINES = 10_000  # no chunk ever had as many lines
MAX_SIGNATURE_BITS = 16  # of what is sought that are asked for


@dataclass(frozen=True)
class Line:
    """One log line. `cursor` is its number within the job."""

    cursor: int
    time: datetime
    attempt: int
    rank: int
    stream: str
    text: str


@dataclass(frozen=True)
class Sought:
    """A log filter. None and "" match everything."""

    attempt: int | None = None
    rank: int | None = None
    grep: str = ""

    def holds(self, rank: int, text: str) -> bool:
        """Return whether a line of this rank with this text matches."""
        return (self.rank is None or rank == self.rank) and self.grep in text


EVERYTHING = Sought()


@dataclass(frozen=True)
class Page:
    """Lines, and the positions up to and down to which everything was searched.

    `next_after` leads to the next page. `next_before` leads to the lines before the page; None if there are none, or
    for a page that was read forwards.
    """

    lines: list[Line]
    next_after: int
    next_before: int | None = None


def forwards(job: Job, sought: Sought, *, after: int, limit: int) -> Page:
    """Return up to `limit` matching lines with a cursor greater than `after`, oldest first."""
    newest = _last_line(job, sought)  # read first: what comes while this looks is left to the next page
    found: list[Line] = []
    seen, opened = after, 0
    for attempt in _attempts(job, sought):
        while opened < MAX_OPENED_CHUNKS:
            chunks = list(_chunks(attempt, sought).filter(last_line__gt=seen).order_by("last_line")[:PAGE_CHUNKS])
            for chunk in chunks:
                found += [line for line in _lines(chunk, attempt.number, sought) if line.cursor > seen]
                seen, opened = chunk.last_line, opened + 1
                if len(found) >= limit:
                    rest = found[limit:]
                    return Page(found[:limit], found[limit - 1].cursor if rest else seen)
            if len(chunks) < PAGE_CHUNKS:
                break
        else:
            return Page(found, seen)
    return Page(found, max(seen, newest))


def backwards(job: Job, sought: Sought, *, after: int, limit: int, before: int | None = None) -> Page:
    """Return the last `limit` lines with a cursor greater than `after`, and less than `before` if it is given."""
    found: list[Line] = []
    newest, opened = max(after, _last_line(job, sought)), 0
    reached = newest + 1 if before is None else min(before, newest + 1)
    for attempt in reversed(_attempts(job, sought)):
        while opened < MAX_OPENED_CHUNKS and len(found) < limit:
            rows = _chunks(attempt, sought).filter(last_line__gt=after, last_line__lt=reached + MAX_STORED_CHUNK_LINES)
            chunks = list(rows.filter(first_line__lt=reached).order_by("-last_line")[:PAGE_CHUNKS])
            for chunk in chunks:
                here = [line for line in _lines(chunk, attempt.number, sought) if after < line.cursor < reached]
                found = here + found
                reached, opened = chunk.first_line, opened + 1
                if len(found) >= limit:
                    break
            if len(chunks) < PAGE_CHUNKS:
                break
    is_complete = opened < MAX_OPENED_CHUNKS and len(found) < limit
    if len(found) > limit:
        reached = found[-limit].cursor
    return Page(found[-limit:] if limit else [], newest, None if is_complete or reached <= after + 1 else reached)


def every_line(attempt: Attempt, sought: Sought = EVERYTHING) -> Iterator[Line]:
    """Yield all matching lines of an attempt in order, with only a few chunks in memory."""
    seen = -1
    while chunks := list(_chunks(attempt, sought).filter(last_line__gt=seen).order_by("last_line")[:PAGE_CHUNKS]):
        for chunk in chunks:
            yield from _lines(chunk, attempt.number, sought)
        seen = chunks[-1].last_line


def every_line_of_job(job: Job, sought: Sought) -> Iterator[Line]:
    """Yield all matching lines of a job in order, with only a few chunks in memory."""
    for attempt in _attempts(job, sought):
        yield from every_line(attempt, sought)


def parts(rows: list[Any]) -> Iterator[list[Any]]:
    """Split `rows` (time, rank, stream, text) where a chunk would exceed MAX_CHUNK_LINES or MAX_CHUNK_CHARACTERS."""
    part: list[Any] = []
    size = 0
    for row in rows:
        if part and (len(part) >= MAX_CHUNK_LINES or size + len(row[3]) > MAX_CHUNK_CHARACTERS):
            yield part
            part, size = [], 0
        part.append(row)
        size += len(row[3])
    if part:
        yield part


def signature(texts: Iterable[str]) -> bytes:
    """Return the signature of these texts in the bit order of PostgreSQL's get_bit.

    The lowest bit of the first byte comes first.
    """
    bits = np.zeros(SIGNATURE_BITS, dtype=np.uint8)
    bits[_places("\n".join(texts))] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def _places(text: str) -> np.ndarray:
    octets = np.frombuffer(text.encode(), dtype=np.uint8).astype(np.uint32)
    mixed = (octets[:-2] << 16 | octets[1:-1] << 8 | octets[2:]) * np.uint32(2654435761)
    return mixed >> np.uint32(32 - 13)  # 13 bits: SIGNATURE_BITS places


def _attempts(job: Job, sought: Sought) -> list[Attempt]:
    rows = Attempt.objects.filter(job=job).only("id", "number").order_by("number")
    return list(rows if sought.attempt is None else rows.filter(number=sought.attempt))


def _chunks(attempt: Attempt, sought: Sought) -> QuerySet[LogChunk]:
    rows = LogChunk.objects.filter(attempt=attempt)
    if sought.rank is not None:
        rows = rows.filter(Q(ranks=None) | Q(ranks__contains=[sought.rank]))
    if len(sought.grep.encode()) >= 3:
        places = np.unique(_places(sought.grep))
        asked = places[:: -(-len(places) // MAX_SIGNATURE_BITS)]
        may_hold = Q()
        for place in asked.tolist():
            bit = Func(F("signature"), Value(place), function="get_bit", output_field=IntegerField())
            rows = rows.alias(**{f"bit{place}": bit})
            may_hold &= Q(**{f"bit{place}": 1})
        rows = rows.filter(Q(signature=None) | may_hold)
    return rows


def _lines(chunk: LogChunk, attempt: int, sought: Sought) -> list[Line]:
    return [
        Line(chunk.first_line + index, datetime.fromtimestamp(time, UTC), attempt, rank, stream, text)
        for index, (time, rank, stream, text) in enumerate(codec.unpack_rows(chunk.content))
        if sought.holds(rank, text)
    ]


def _last_line(job: Job, sought: Sought) -> int:
    """Return the number of the newest line; -1 without any."""
    for attempt in reversed(_attempts(job, sought)):
        newest = LogChunk.objects.filter(attempt=attempt).order_by("-last_line").values_list("last_line", flat=True)
        if (line := newest.first()) is not None:
            return int(line)
    return -1
