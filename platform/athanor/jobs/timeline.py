"""Where the wall time of a job went, computed from its events. Pure: reads neither the database nor the clock.

The time from submission to the end (or to the present) is partitioned into spans, each with one activity, so that the
parts always add up to the whole. Where reports overlap, such as data that is prepared while processes import, the later
start wins.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import IntEnum, StrEnum
from typing import Any, Protocol

from athanor.jobs.states import FINAL, HOLDING, JobStatus
from trainer.contract.events import WAIT_FOR_DATA

EVENT_TYPES = (
    "job.status", "phase.finished", "generation.started", "evaluation", "checkpoint.saved", "checkpoint.registered",
    "export.finished",
)  # fmt: skip
MAX_PHASE_LENGTH = 60
MAX_SECONDS = 10 * 365 * 86_400
_NOTHING = timedelta()


class Activity(StrEnum):
    """What a job's time was spent on."""

    QUEUED = "queued"
    STARTUP = "startup"
    TRAINING = "training"
    PREPARING = "preparing"
    EVALUATION = "evaluation"
    CHECKPOINT = "checkpoint"
    EXPORT = "export"
    FINISHING = "finishing"
    PAUSED = "paused"
    LOST = "lost"


class Event(Protocol):
    """An event of a job, as `athanor.jobs.models.JobEvent` stores it."""

    type: str
    time: datetime
    actor: str
    data: dict[str, Any]


@dataclass(frozen=True)
class Span:
    """Part of a job's time. `phase`: of a start-up; `cluster` while it is queued there. `attempt`: its number."""

    start: datetime
    end: datetime
    activity: Activity
    attempt: int | None = None
    phase: str = ""

    @property
    def duration(self) -> timedelta:
        """Return the length."""
        return self.end - self.start


@dataclass
class Totals:
    """Durations by activity, and those of the start-up by phase. `total` is the sum of all activities."""

    total: timedelta = _NOTHING
    activities: dict[Activity, timedelta] = field(default_factory=lambda: dict.fromkeys(Activity, _NOTHING))
    startup: dict[str, timedelta] = field(default_factory=dict)

    def add(self, span: Span) -> None:
        """Add a span."""
        self.total += span.duration
        self.activities[span.activity] += span.duration
        if span.activity is Activity.STARTUP:
            self.startup[span.phase] = self.startup.get(span.phase, _NOTHING) + span.duration


def total(spans: Iterable[Span]) -> Totals:
    """Return the totals of spans."""
    totals = Totals()
    for span in spans:
        totals.add(span)
    return totals


def totals_by_attempt(spans: Iterable[Span]) -> dict[int, Totals]:
    """Return the totals of each attempt, by its number. Time between attempts belongs to none."""
    found: dict[int, Totals] = defaultdict(Totals)
    for span in spans:
        if span.attempt is not None:
            found[span.attempt].add(span)
    return dict(found)


def timeline(
    events: Sequence[Event],
    *,
    created_at: datetime,
    end: datetime,
    launched: Mapping[str, datetime | None],
    trains: bool = True,
) -> list[Span]:
    """Partition the time from `created_at` to `end` into spans, in order and without gaps.

    `events`: those of EVENT_TYPES, in the order of their numbers; the one that ends the job ends the spans too.
    `launched`: when each attempt's processes could start, by its id. `trains`: False for a job that only prepares data.
    """
    end = max(created_at, end)
    reports: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event.type != "job.status":
            reports[event.actor].append(event)
    spans: list[Span] = []
    for stay in _stays(_statuses(events, created_at, end)):
        if stay.attempt_id is None:
            spans += [Span(part.start, part.end, _OUTSIDE[part.status]) for part in stay.parts]
        else:
            spans += _attempt_spans(stay, reports[stay.attempt_id], launched.get(stay.attempt_id), trains=trains)
    return list(_merged(spans))


def simplified(spans: Sequence[Span], limit: int) -> list[Span]:
    """Return about `limit` spans at most, to draw: one shorter than 1/`limit` of the whole joins its neighbour."""
    if len(spans) <= limit:
        return list(spans)
    shortest = (spans[-1].end - spans[0].start) / limit
    kept: list[Span] = []
    for span in spans:
        if kept and kept[-1].attempt == span.attempt and min(span.duration, kept[-1].duration) < shortest:
            longer = max(kept[-1], span, key=lambda each: each.duration)
            kept[-1] = replace(longer, start=kept[-1].start, end=span.end)
        else:
            kept.append(span)
    return list(_merged(kept))


@dataclass(frozen=True)
class _Part:
    """A time in one status."""

    start: datetime
    end: datetime
    status: JobStatus
    attempt_id: str | None = None
    number: int | None = None


@dataclass(frozen=True)
class _Stay:
    """Consecutive parts of one attempt, or one part outside of attempts. `left_to`: the status after it, None: none."""

    parts: tuple[_Part, ...]
    left_to: JobStatus | None

    @property
    def attempt_id(self) -> str | None:
        return self.parts[-1].attempt_id

    @property
    def start(self) -> datetime:
        return self.parts[0].start

    @property
    def end(self) -> datetime:
        return self.parts[-1].end


_OUTSIDE = {status: Activity.STARTUP for status in HOLDING} | {
    JobStatus.QUEUED: Activity.QUEUED,
    JobStatus.PAUSED: Activity.PAUSED,
}


def _statuses(events: Sequence[Event], created_at: datetime, end: datetime) -> list[_Part]:
    """Return the job's statuses in order, the last one up to `end`; a final status takes no time."""
    parts: list[_Part] = []
    status, since = JobStatus.QUEUED, created_at
    attempt: str | None = None
    number: int | None = None
    for event in events:
        if event.type != "job.status":
            continue
        at = min(max(event.time, since), end)
        parts.append(_Part(since, at, status, attempt, number))
        status, since = JobStatus(event.data["to"]), at
        if status is JobStatus.DISPATCHING:
            attempt, number = event.data.get("attempt"), event.data.get("number")
        elif status not in HOLDING:
            attempt = number = None
    parts.append(_Part(since, end, status, attempt, number))
    return parts


def _stays(parts: Sequence[_Part]) -> Iterator[_Stay]:
    begin = 0
    for place, part in enumerate(parts):
        following = parts[place + 1] if place + 1 < len(parts) else None
        if part.status in FINAL:
            return
        # The admission leads to the attempt, though its event cannot name it yet.
        belongs = part.status is JobStatus.ADMITTED and following is not None and following.attempt_id is not None
        if following is not None and (belongs or (part.attempt_id and following.attempt_id == part.attempt_id)):
            continue
        yield _Stay(tuple(parts[begin : place + 1]), following.status if following else None)
        begin = place + 1


class _Layer(IntEnum):
    """Of two intervals that overlap, the one of the higher layer counts."""

    STATUS = 0
    GENERATION = 1
    PHASE = 2
    FINISHING = 3
    REPORTED = 4
    LOST = 5


@dataclass(frozen=True)
class _Interval:
    start: datetime
    end: datetime
    layer: _Layer
    activity: Activity
    phase: str = ""


@dataclass
class _Generation:
    """A group of worker processes of an attempt. `trains_from`: when its first step ended, None if it never did."""

    start: datetime
    end: datetime
    events: list[Event] = field(default_factory=list)
    trains_from: datetime | None = None


def _attempt_spans(stay: _Stay, reports: Sequence[Event], launched: datetime | None, *, trains: bool) -> Iterator[Span]:
    number = stay.parts[-1].number
    began = _launch_of(stay, reports, launched)
    intervals = [*_by_status(stay, began, trains=trains)]
    if trains:
        for generation in _generations(stay, began, reports):
            intervals += _clipped(_of_generation(generation, stay), generation.start, generation.end)
    else:
        intervals += _waits(reports)
    for start, end, top in _sweep(intervals, stay.start, stay.end):
        yield Span(start, end, top.activity, number, top.phase)


def _launch_of(stay: _Stay, reports: Sequence[Event], launched: datetime | None) -> datetime:
    """Return when the attempt's processes could start: within the stay, or at its end if they never could.

    A report proves that they could, and so does a status after STARTING.
    """
    submitted = next((part.start for part in stay.parts if part.status is JobStatus.STARTING), stay.end)
    running = (part.start for part in stay.parts if part.status is JobStatus.RUNNING)
    known = [*([launched] if launched else []), *(report.time for report in reports), *running, stay.end]
    return max(min(known), submitted)


def _by_status(stay: _Stay, began: datetime, *, trains: bool) -> Iterator[_Interval]:
    for part in stay.parts:
        if part.status in (JobStatus.ADMITTED, JobStatus.DISPATCHING):
            yield _Interval(part.start, part.end, _Layer.STATUS, Activity.STARTUP, "dispatch")
        elif part.status is JobStatus.STARTING:
            yield _Interval(part.start, min(part.end, began), _Layer.STATUS, Activity.QUEUED, "cluster")
            yield _Interval(max(part.start, began), part.end, _Layer.STATUS, Activity.STARTUP, "launch")
        elif part.status is JobStatus.RUNNING:
            yield _Interval(part.start, part.end, _Layer.STATUS, Activity.TRAINING if trains else Activity.PREPARING)
        else:  # it is stopping
            yield _Interval(part.start, part.end, _Layer.FINISHING, Activity.FINISHING)


def _waits(reports: Sequence[Event]) -> Iterator[_Interval]:
    """Yield the times in which a job that only prepares data waited for another job that prepared the same."""
    for event in reports:
        if event.type == "phase.finished" and event.data.get("phase") == WAIT_FOR_DATA:
            begin = event.time - _duration(event.data.get("seconds"))
            yield _Interval(begin, event.time, _Layer.PHASE, Activity.STARTUP, WAIT_FOR_DATA)


def _generations(stay: _Stay, began: datetime, reports: Sequence[Event]) -> list[_Generation]:
    """Return the attempt's groups of workers in order, with their reports."""
    starts: dict[str, datetime] = {}
    for event in reports:
        if event.type == "generation.started":
            name = str(event.data.get("generation"))
            starts[name] = min(starts.get(name, event.time), event.time)
    bounds = [began, *sorted(min(max(start, began), stay.end) for start in starts.values()), stay.end]
    generations = [_Generation(start, end) for start, end in zip(bounds, bounds[1:], strict=False)]
    for event in reports:
        if event.type != "generation.started":
            # The reports of one generation reach the platform before the next one starts; later ones name its end.
            found = next((each for each in reversed(generations) if each.start <= event.time), generations[0])
            found.events.append(event)
    for generation in generations:
        first_steps = [
            event.time
            for event in generation.events
            if event.type == "phase.finished" and event.data.get("phase") == "first_step"
        ]
        if first_steps:
            generation.trains_from = min(first_steps)
    running = next((part.start for part in stay.parts if part.status is JobStatus.RUNNING), None)
    if running is not None and generations[0].trains_from is None and len(generations) == 1:
        generations[0].trains_from = max(running, generations[0].start)
    return generations


def _of_generation(generation: _Generation, stay: _Stay) -> Iterator[_Interval]:
    ready = generation.trains_from
    yield _Interval(generation.start, ready or generation.end, _Layer.GENERATION, Activity.STARTUP, "launch")
    if ready is not None:
        yield _Interval(ready, generation.end, _Layer.GENERATION, Activity.TRAINING)
    saved = _Saved()
    for event in generation.events:
        seconds = _duration(event.data.get("seconds"))
        begin = event.time - seconds
        if event.type == "phase.finished":
            phase = str(event.data.get("phase"))[:MAX_PHASE_LENGTH]
            yield _Interval(begin, min(event.time, ready or event.time), _Layer.PHASE, Activity.STARTUP, phase)
        elif event.type == "evaluation":
            yield _Interval(begin, event.time, _Layer.REPORTED, Activity.EVALUATION)
        elif event.type == "export.finished":
            yield _Interval(begin, event.time, _Layer.REPORTED, Activity.EXPORT)
            yield _Interval(event.time, generation.end, _Layer.FINISHING, Activity.FINISHING)
        elif event.type == "checkpoint.saved":
            blocked = _duration(event.data.get("blocked_seconds"))
            is_final = event.data.get("final") is True
            yield _Interval(begin - blocked, event.time if is_final else begin, _Layer.REPORTED, Activity.CHECKPOINT)
            saved.at_step[str(event.data.get("step"))] = begin
            if is_final:
                saved.in_order = True
                yield _Interval(begin, generation.end, _Layer.FINISHING, Activity.FINISHING)
        elif event.type == "checkpoint.registered":
            saved.at_step.setdefault(str(event.data.get("step")), event.time)
    is_last = generation.end == stay.end
    if ready is None or saved.in_order or (is_last and stay.left_to in (None, JobStatus.SUCCEEDED)):
        return
    kept = max([ready, *saved.at_step.values()])
    yield _Interval(kept, generation.end, _Layer.LOST, Activity.LOST)


@dataclass
class _Saved:
    """When the states that a generation's checkpoints keep were reached, by step; whether the last step is one."""

    at_step: dict[str, datetime] = field(default_factory=dict)
    in_order: bool = False


def _duration(seconds: object) -> timedelta:
    """Return a reported duration; none for what is not one, since the trainer is not trusted."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return _NOTHING
    return timedelta(seconds=min(seconds, MAX_SECONDS)) if seconds > 0 else _NOTHING


def _clipped(intervals: Iterable[_Interval], start: datetime, end: datetime) -> Iterator[_Interval]:
    for each in intervals:
        if min(each.end, end) > max(each.start, start):
            yield replace(each, start=max(each.start, start), end=min(each.end, end))


def _sweep(
    intervals: Iterable[_Interval], start: datetime, end: datetime
) -> Iterator[tuple[datetime, datetime, _Interval]]:
    """Return for each time between two bounds the interval that counts there."""
    clipped = sorted(_clipped(intervals, start, end), key=lambda each: each.start)
    bounds = sorted({start, end, *(each.start for each in clipped), *(each.end for each in clipped)})
    active: list[tuple[int, float, int]] = []
    place = 0
    for since, until in zip(bounds, bounds[1:], strict=False):
        while place < len(clipped) and clipped[place].start <= since:
            each = clipped[place]
            heapq.heappush(active, (-each.layer, -each.start.timestamp(), place))
            place += 1
        while clipped[active[0][2]].end <= since:
            heapq.heappop(active)
        yield since, until, clipped[active[0][2]]


def _merged(spans: Iterable[Span]) -> Iterator[Span]:
    """Join neighbours that differ in their times only, and drop empty ones."""
    last: Span | None = None
    for span in spans:
        if span.start == span.end:
            continue
        if last is not None and replace(span, start=last.start, end=last.end) == last:
            last = replace(last, end=span.end)
            continue
        if last is not None:
            yield last
        last = span
    if last is not None:
        yield last
