"""What the slots of a job's attempts were held for, with the interruptions that caused losses. Pure.

The wall time of an attempt begins with its launch, as its metering does, and ends with its end. Ranks step together and
all slots are held for all of that time, so each second counts once for each slot. The parts are those of
`athanor.jobs.timeline`; time of an attempt that the event log does not cover is unattributed. From the placement of a
round's ranks to the next one, the slots of nodes without ranks are idle: of spare nodes, and of lost ones.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise

from athanor.jobs.reasons import REASON_OF_END, Reason
from athanor.jobs.timeline import Activity, Event, Span, WorkerGroup
from trainer.contract.events import ATTEMPT_GROWN

PRODUCTIVE = frozenset({Activity.TRAINING, Activity.PREPARING})
# What a rank sees when another rank fails: of several nodes' reports of a restart, one of something else explains more.
_CONSEQUENCES = frozenset({Reason.INTERRUPTED.value, Reason.COLLECTIVE_TIMEOUT.value, Reason.NETWORK_ERROR.value, ""})
MAX_TEXT_LENGTH = 2000


@dataclass(frozen=True)
class AttemptFacts:
    """An attempt: its launch, None if there was none, its end or the present, and how it ended.

    `reason`: code, empty as long as there is none. `node`: where the end was reported, empty if that is not known.
    `last_step`: steps done at the end, None if none were reported. `slots`: of all its `nodes`, spare ones included.
    `placed`: when ranks were placed, and on how many nodes, in order.
    """

    number: int
    launched_at: datetime | None
    end: datetime
    reason: str = ""
    detail: str = ""
    node: str = ""
    last_step: int | None = None
    slots: int = 1
    nodes: int = 1
    placed: Sequence[tuple[datetime, int]] = ()

    def idle_slots(self, nodes: int) -> int:
        """Return the number of slots that are idle while so many nodes have ranks."""
        return self.slots * max(0, self.nodes - nodes) // self.nodes


@dataclass(frozen=True)
class Interruption:
    """The end of a group of workers other than by completion: of an attempt, or a restart in place.

    `reason`: its code, empty if it is not known. `steps_lost`: steps that were done and repeated, None if it is not
    known how many, as before the workers that follow have resumed.
    """

    attempt: int
    group: int
    time: datetime
    in_place: bool
    reason: str
    detail: str
    node: str
    steps_lost: int | None


@dataclass(frozen=True)
class Entry:
    """A part of an attempt's wall time, of all its slots or of some of them, while the others are idle.

    `cause`: the index of the interruption that caused it, if one did.
    """

    span: Span
    cause: int | None
    slots: int


def entries(
    spans: Sequence[Span], attempts: Sequence[AttemptFacts], interruptions: Sequence[Interruption]
) -> list[Entry]:
    """Return the parts of all attempts' wall times, in order of attempts and time.

    Those of an attempt add up to its wall time multiplied by its slots, whatever the spans. What a group of workers
    lost or hung is caused by the interruption that ended it, its start-up by the one before it. Idle slots have no
    cause.
    """
    by_attempt: dict[int | None, list[Span]] = defaultdict(list)
    for span in spans:
        by_attempt[span.attempt].append(span)
    ended = [(each.attempt, each.group) for each in interruptions]
    ended_by = {group: index for index, group in enumerate(ended)}
    found = []
    for attempt in sorted(attempts, key=lambda each: each.number):
        for span, idle in _with_idle_slots(_of_wall_time(by_attempt[attempt.number], attempt), attempt):
            cause: int | None = None
            if span.activity in (Activity.LOST, Activity.STALLED):
                cause = ended_by.get((attempt.number, span.group))
            elif span.activity is Activity.STARTUP:
                before = bisect_left(ended, (attempt.number, span.group))
                cause = before - 1 if before else None
            found.append(Entry(span, cause, attempt.slots - idle))
            if idle:
                found.append(Entry(replace(span, activity=Activity.IDLE, phase=""), None, idle))
    return found


def interruptions(groups: Sequence[WorkerGroup], attempts: Sequence[AttemptFacts]) -> list[Interruption]:
    """Return what interrupted the job, in order of attempts and groups of workers."""
    by_attempt: dict[int | None, list[WorkerGroup]] = defaultdict(list)
    for group in groups:
        by_attempt[group.attempt].append(group)
    found = []
    for attempt in sorted(attempts, key=lambda each: each.number):
        own = by_attempt[attempt.number]
        for group, following in zip(own, own[1:], strict=False):
            found.append(_restart(attempt.number, group, following))
        if attempt.reason not in ("", Reason.COMPLETED.value):
            last = own[-1] if own else None
            found.append(
                Interruption(
                    attempt.number, last.number if last else 0, attempt.end, in_place=False, reason=attempt.reason,
                    detail=attempt.detail, node=attempt.node or (_hung_node(last) if last else ""),
                    steps_lost=_steps_lost(attempt.last_step, last) if last else None,
                )
            )  # fmt: skip
    return found


def _of_wall_time(spans: Sequence[Span], attempt: AttemptFacts) -> Iterator[Span]:
    if attempt.launched_at is None:
        return
    covered = attempt.launched_at
    gap = Span(covered, covered, Activity.UNATTRIBUTED, attempt.number)
    for span in sorted(spans, key=lambda each: each.start):
        start, end = max(span.start, covered), min(span.end, attempt.end)
        if start >= end:
            continue
        if start > covered:
            yield replace(gap, start=covered, end=start)
        yield span if (start, end) == (span.start, span.end) else replace(span, start=start, end=end)
        covered = end
    if covered < attempt.end:
        yield replace(gap, start=covered, end=attempt.end)


def _with_idle_slots(spans: Iterable[Span], attempt: AttemptFacts) -> Iterator[tuple[Span, int]]:
    """Yield the spans, divided at the placements of ranks, with the number of slots that are idle in each."""
    times = [time for time, _ in attempt.placed]
    idle = [0, *(attempt.idle_slots(nodes) for _, nodes in attempt.placed)]
    for span in spans:
        first, last = bisect_right(times, span.start), bisect_left(times, span.end)
        for place, (start, end) in enumerate(pairwise([span.start, *times[first:last], span.end]), first):
            if start < end:
                yield replace(span, start=start, end=end), idle[place]


def _restart(attempt: int, group: WorkerGroup, following: WorkerGroup) -> Interruption:
    reports = [_Report.of(event) for event in following.started_by]
    report = next((each for each in reports if each.reason not in _CONSEQUENCES), reports[0])
    if any(event.type == ATTEMPT_GROWN for event in following.events):  # all nodes only followed the one that joined
        report = replace(report, reason=Reason.NODE_JOINED.value, detail="", node="")
    steps = [each.step for each in reports if each.step is not None]
    return Interruption(
        attempt, group.number, group.end, in_place=True, reason=report.reason, detail=report.detail, node=report.node,
        steps_lost=_steps_lost(max(steps, default=None), group),
    )  # fmt: skip


def _hung_node(group: WorkerGroup) -> str:
    """Return the node with the ranks that held up the others in the group's last hang, empty if there is none."""
    hangs = (event for event in reversed(group.events) if event.type == "progress.stalled")
    found = (event.data for event in hangs if event.data.get("is_hang") is True and event.data.get("ranks"))
    return next((_text(data, "node") for data in found), "")


def _steps_lost(last_step: int | None, group: WorkerGroup) -> int | None:
    if last_step is None or group.rewound_to is None:
        return None
    return max(0, last_step - max(group.rewound_to, group.resumed_from or 0))


@dataclass(frozen=True)
class _Report:
    """What a node reported of a restart. Its fields may be missing, or anything: the trainer is not trusted."""

    reason: str
    detail: str
    node: str
    step: int | None

    @classmethod
    def of(cls, event: Event) -> "_Report":
        data, by_name = event.data, {end_class.value: reason for end_class, reason in REASON_OF_END.items()}
        step, end_class = data.get("step"), data.get("end_class")
        return cls(
            by_name[end_class].value if isinstance(end_class, str) and end_class in by_name else "",
            _text(data, "because"),
            _text(data, "node"),
            max(0, step) if isinstance(step, int) and not isinstance(step, bool) else None,
        )


def _text(data: Mapping[str, object], name: str) -> str:
    value = data.get(name)
    return value[:MAX_TEXT_LENGTH] if isinstance(value, str) else ""
