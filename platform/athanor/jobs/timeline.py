"""Where the wall time of a job went, computed from its events. Pure: reads neither the database nor the clock.

The time from submission to the end (or to the present) is partitioned into spans, each with one activity, so that the
parts always add up to the whole. Where reports overlap, such as data that is prepared while processes import, the later
start wins. Lost is what a later group of workers repeats, because it resumes from an earlier checkpoint; of work that
none has resumed yet, what lies after the newest checkpoint.
"""

import heapq
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import IntEnum, StrEnum
from itertools import pairwise
from typing import Any, Protocol

from athanor.jobs.states import FINAL, HOLDING, JobStatus
from trainer.contract.events import ATTEMPT_GROWN, WAIT_FOR_DATA

EVENT_TYPES = (
    "job.status", "phase.finished", "generation.started", "training.started", "evaluation", "checkpoint.saved",
    "checkpoint.registered", "export.finished", "progress.stalled", ATTEMPT_GROWN,
)  # fmt: skip
MAX_PHASE_LENGTH = 60
MAX_SECONDS = 10 * 365 * 86_400
_NOTHING = timedelta()


class Activity(StrEnum):
    """What a job's time was spent on. IDLE is of slots only: those of nodes without ranks, while others have them."""

    QUEUED = "queued"
    STARTUP = "startup"
    TRAINING = "training"
    PREPARING = "preparing"
    EVALUATION = "evaluation"
    CHECKPOINT = "checkpoint"
    EXPORT = "export"
    FINISHING = "finishing"
    PAUSED = "paused"
    STALLED = "stalled"
    LOST = "lost"
    IDLE = "idle"
    UNATTRIBUTED = "unattributed"


OF_WALL_TIME = tuple(each for each in Activity if each is not Activity.IDLE)


class Event(Protocol):
    """An event of a job, as `athanor.jobs.models.JobEvent` stores it."""

    type: str
    time: datetime
    actor: str
    data: dict[str, Any]


@dataclass(frozen=True)
class Span:
    """Part of a job's time. `phase`: of a start-up; `cluster` while it is queued there. `attempt`: its number.
    `group`: which of the attempt's groups of workers it belongs to, from 0."""

    start: datetime
    end: datetime
    activity: Activity
    attempt: int | None = None
    phase: str = ""
    group: int = 0

    @property
    def duration(self) -> timedelta:
        """Return the length."""
        return self.end - self.start


@dataclass
class WorkerGroup:
    """A group of worker processes of an attempt. `attempt`: its number, None if its event lacks it.

    `started_by`: the reports of the restart that it began with, none for the first. `trains_from`: when its first step
    ended, None if it never did. `resumed_from`: the steps done at the checkpoint that it resumed from, None if it did
    not say. `rewound_to`: the fewest steps that a later group resumed from, None if none did. `last_step`: steps done
    at its end, None if its nodes did not say.
    """

    attempt: int | None
    number: int
    start: datetime
    end: datetime
    started_by: list[Event] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    trains_from: datetime | None = None
    resumed_from: int | None = None
    rewound_to: int | None = None
    last_step: int | None = None


@dataclass
class Totals:
    """Durations by activity, and those of the start-up by phase. `total` is the sum of all activities."""

    total: timedelta = _NOTHING
    activities: dict[Activity, timedelta] = field(default_factory=lambda: dict.fromkeys(OF_WALL_TIME, _NOTHING))
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
    spans: list[Span] = []
    for stay in _histories(events, created_at, end, launched):
        if stay.attempt_id is None:
            spans += [Span(part.start, part.end, _OUTSIDE[part.status]) for part in stay.parts]
        else:
            spans += _attempt_spans(stay, trains=trains)
    return list(_merged(spans))


def worker_groups(
    events: Sequence[Event], *, created_at: datetime, end: datetime, launched: Mapping[str, datetime | None]
) -> list[WorkerGroup]:
    """Return the groups of workers of all attempts, in order. The parameters are those of `timeline`."""
    return [group for stay in _histories(events, created_at, end, launched) for group in stay.groups]


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
    """Consecutive parts of one attempt, or one part outside of attempts. `left_to`: the status after it, None: none.
    `reports`: what the attempt sent; its processes could start at `launched`."""

    parts: tuple[_Part, ...]
    left_to: JobStatus | None
    reports: Sequence[Event] = ()
    launched: datetime | None = None
    groups: Sequence[WorkerGroup] = ()

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


def _histories(
    events: Sequence[Event], created_at: datetime, end: datetime, launched: Mapping[str, datetime | None]
) -> list[_Stay]:
    """Return the stays of a job in order, those of attempts with their reports and groups of workers."""
    reports: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event.type != "job.status":
            reports[event.actor].append(event)
    stays = []
    for stay in _stays(_statuses(events, created_at, max(created_at, end))):
        if stay.attempt_id is None:
            stays.append(stay)
            continue
        known = replace(stay, reports=reports[stay.attempt_id])
        known = replace(known, launched=_launch_of(known, launched.get(stay.attempt_id)))
        stays.append(replace(known, groups=_groups(known)))
    rewound_to: int | None = None
    for group in (group for stay in reversed(stays) for group in reversed(stay.groups)):
        group.rewound_to = rewound_to
        known_steps = [step for step in (rewound_to, group.resumed_from) if step is not None]
        rewound_to = min(known_steps, default=None)
    return stays


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
    STALLED = 3
    FINISHING = 4
    REPORTED = 5
    LOST = 6
    HANG = 7


@dataclass(frozen=True)
class _Interval:
    start: datetime
    end: datetime
    layer: _Layer
    activity: Activity
    phase: str = ""


def _attempt_spans(stay: _Stay, *, trains: bool) -> Iterator[Span]:
    attempt, began = stay.parts[-1].number, stay.groups[0].start
    by_status = [*_by_status(stay, began, trains=trains)]
    if not trains:
        for start, end, top in _sweep([*by_status, *_waits(stay.reports)], stay.start, stay.end):
            yield Span(start, end, top.activity, attempt, top.phase)
        return
    for start, end, top in _sweep(by_status, stay.start, began):
        yield Span(start, end, top.activity, attempt, top.phase)
    for group in stay.groups:
        for start, end, top in _sweep([*by_status, *_of_group(group, stay)], group.start, group.end):
            yield Span(start, end, top.activity, attempt, top.phase, group.number)


def _launch_of(stay: _Stay, launched: datetime | None) -> datetime:
    """Return when the attempt's processes could start: within the stay, or at its end if they never could.

    A report proves that they could, and so does a status after STARTING.
    """
    submitted = next((part.start for part in stay.parts if part.status is JobStatus.STARTING), stay.end)
    running = (part.start for part in stay.parts if part.status is JobStatus.RUNNING)
    known = [*([launched] if launched else []), *(report.time for report in stay.reports), *running, stay.end]
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


def _groups(stay: _Stay) -> list[WorkerGroup]:
    """Return the attempt's groups of workers in order, with their reports."""
    assert stay.launched is not None
    restarts: dict[str, list[Event]] = defaultdict(list)
    for event in stay.reports:
        if event.type == "generation.started":
            restarts[str(event.data.get("generation"))].append(event)
    ordered = sorted(
        (min(max(min(event.time for event in reports), stay.launched), stay.end), place)
        for place, reports in enumerate(restarts.values())
    )
    bounds = [stay.launched, *(start for start, _ in ordered), stay.end]
    causes = [[], *(list(restarts.values())[place] for _, place in ordered)]
    number_of_attempt = stay.parts[-1].number
    groups = [
        WorkerGroup(number_of_attempt, number, bounds[number], bounds[number + 1], started_by)
        for number, started_by in enumerate(causes)
    ]
    starts = [group.start for group in groups]
    for event in stay.reports:
        if event.type != "generation.started":
            # The reports of one group reach the platform before the next one starts; later ones name its end.
            groups[max(0, bisect_right(starts, event.time) - 1)].events.append(event)
    for group in groups:
        group.trains_from = min((each.time for each in group.events if _is_first_step(each)), default=None)
        steps = [_step(each.data.get("step")) for each in group.events if each.type == "training.started"]
        group.resumed_from = next((step for step in steps if step is not None), None)
    for group, following in pairwise(groups):
        done = [_step(each.data.get("step")) for each in following.started_by]
        group.last_step = max((step for step in done if step is not None), default=None)
    running = next((part.start for part in stay.parts if part.status is JobStatus.RUNNING), None)
    if running is not None and groups[0].trains_from is None and len(groups) == 1:
        groups[0].trains_from = max(running, groups[0].start)
    return groups


def _is_first_step(event: Event) -> bool:
    return event.type == "phase.finished" and event.data.get("phase") == "first_step"


def _of_group(group: WorkerGroup, stay: _Stay) -> Iterator[_Interval]:
    ready = group.trains_from
    yield _Interval(group.start, ready or group.end, _Layer.GENERATION, Activity.STARTUP, "launch")
    if ready is not None:
        yield _Interval(ready, group.end, _Layer.GENERATION, Activity.TRAINING)
    saved = _Saved()
    for event in group.events:
        seconds = _duration(event.data.get("seconds"))
        begin = event.time - seconds
        if event.type == "phase.finished":
            phase = str(event.data.get("phase"))[:MAX_PHASE_LENGTH]
            yield _Interval(begin, min(event.time, ready or event.time), _Layer.PHASE, Activity.STARTUP, phase)
        elif event.type == "evaluation":
            yield _Interval(begin, event.time, _Layer.REPORTED, Activity.EVALUATION)
        elif event.type == "export.finished":
            yield _Interval(begin, event.time, _Layer.REPORTED, Activity.EXPORT)
            yield _Interval(event.time, group.end, _Layer.FINISHING, Activity.FINISHING)
        elif event.type == "checkpoint.saved":
            blocked = _duration(event.data.get("blocked_seconds"))
            is_final = event.data.get("final") is True
            yield _Interval(begin - blocked, event.time if is_final else begin, _Layer.REPORTED, Activity.CHECKPOINT)
            saved.add(event, begin)
            if is_final:
                saved.final_at = begin
                yield _Interval(begin, group.end, _Layer.FINISHING, Activity.FINISHING)
        elif event.type == "checkpoint.registered":
            saved.add(event, event.time, is_exact=False)
        elif event.type == "progress.stalled" and event.data.get("is_hang") is not True:
            yield _Interval(begin, event.time, _Layer.STALLED, Activity.STALLED)
    yield from _hangs(group)
    is_last = group.end == stay.end
    if ready is not None:
        yield from _lost(group, ready, saved, is_gone=not is_last or stay.left_to not in (None, JobStatus.SUCCEEDED))


def _hangs(group: WorkerGroup) -> Iterator[_Interval]:
    """Yield the times of hangs: from the last progress to the end of the workers, or to their next report."""
    progress = sorted(
        event.time - _duration(event.data.get("seconds"))
        for event in group.events
        if event.type in ("phase.finished", "evaluation", "checkpoint.saved", "export.finished")
    )
    for event in group.events:
        if event.type == "progress.stalled" and event.data.get("is_hang") is True:
            following = bisect_right(progress, event.time)
            end = progress[following] if following < len(progress) else group.end
            begin = event.time - _duration(event.data.get("seconds"))
            yield _Interval(begin, end, _Layer.HANG, Activity.STALLED)


@dataclass
class _Saved:
    """When the states in a group's checkpoints were reached, by steps done, and the last if training ended with it."""

    reached: dict[int, datetime] = field(default_factory=dict)
    final_at: datetime | None = None

    def add(self, event: Event, at: datetime, *, is_exact: bool = True) -> None:
        """Add a checkpoint. `is_exact`: the time is that of the state, not of its storage."""
        step = _step(event.data.get("step"))
        if step is not None and (is_exact or step not in self.reached):
            self.reached[step] = at


def _lost(group: WorkerGroup, ready: datetime, saved: _Saved, *, is_gone: bool) -> Iterator[_Interval]:
    """Yield what a group's work was lost: what later groups repeated, else what is in no checkpoint, if it `is_gone`.

    Where the state that was resumed from is in no report, as that of a shadow checkpoint, the steps between two known
    ones are taken to be equally long; without these, it is not known from when on.
    """
    end, step = saved.final_at or group.end, group.rewound_to
    if step is None:
        if is_gone and saved.final_at is None:
            yield _Interval(max([ready, *saved.reached.values()]), end, _Layer.LOST, Activity.LOST)
        return
    earlier = [at for each, at in saved.reached.items() if each <= step]
    if step in saved.reached:
        start = saved.reached[step]
    elif not earlier and (group.resumed_from is None or step <= group.resumed_from):
        start = ready  # it repeated all of the group's steps
    elif (estimate := _time_of(step, group, ready, saved)) is not None:
        start = estimate
    else:
        start = end
        yield _Interval(max([ready, *earlier]), end, _Layer.LOST, Activity.UNATTRIBUTED)
    yield _Interval(start, end, _Layer.LOST, Activity.LOST)


def _time_of(step: int, group: WorkerGroup, ready: datetime, saved: _Saved) -> datetime | None:
    """Estimate when a group had done `step` steps, from the nearest steps of which the time is known; None if there are
    none on one side. The last steps were done at the end, or before it hung."""
    known = dict(saved.reached)
    if group.resumed_from is not None:
        known[group.resumed_from + 1] = ready  # when the first step had ended
    if group.last_step is not None:
        hung = [each.start for each in _hangs(group) if each.end == group.end]
        known[group.last_step] = max(ready, min([group.end, *hung]))
    before = max((each for each in known if each <= step), default=None)
    after = min((each for each in known if each >= step), default=None)
    if group.last_step is not None and step >= group.last_step:
        return group.end  # it repeated nothing
    if before is None or after is None:
        return None
    share = (step - before) / (after - before) if after > before else 0.0
    return known[before] + max(known[after] - known[before], _NOTHING) * share


def _step(value: object) -> int | None:
    """Return a reported number of steps; None for what is not one, since the trainer is not trusted."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


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


def _kind(span: Span) -> tuple[object, ...]:
    return span.activity, span.attempt, span.phase, span.group


def _merged(spans: Iterable[Span]) -> Iterator[Span]:
    """Join neighbours that differ in their times only, and drop empty ones."""
    last: Span | None = None
    for span in spans:
        if span.start == span.end:
            continue
        if last is not None and _kind(span) == _kind(last):
            last = replace(last, end=span.end)
            continue
        if last is not None:
            yield last
        last = span
    if last is not None:
        yield last
