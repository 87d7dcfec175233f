"""Events of jobs, written by hand or drawn at random, for tests of what is computed from them."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from athanor.jobs.states import ALLOWED, FINAL, JobStatus
from athanor.jobs.timeline import Activity, Span, simplified, timeline, total, totals_by_attempt

START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Event:
    type: str
    time: datetime
    actor: str
    data: dict[str, Any]


@dataclass
class History:
    """Events of a job, at seconds since its submission."""

    events: list[Event] = field(default_factory=list)
    launched: dict[str, datetime | None] = field(default_factory=dict)
    attempts: int = 0

    def moves(self, *moves: tuple[float, str]) -> None:
        for second, status in moves:
            data: dict[str, Any] = {"to": status}
            if status == "dispatching":
                self.attempts += 1
                data |= {"attempt": self.attempt, "number": self.attempts}
            if status == "starting":
                self.launched[self.attempt] = at(second)
            self.events.append(Event("job.status", at(second), "dispatch", data))

    @property
    def attempt(self) -> str:
        return f"att_{self.attempts}"

    def starts(self, second: float) -> None:
        """Admit, dispatch and start an attempt, a second each."""
        self.moves((second, "admitted"), (second + 1, "dispatching"), (second + 2, "starting"))

    def reports(self, second: float, kind: str, **data: Any) -> None:
        self.events.append(Event(kind, at(second), self.attempt, data))

    def spans(self, end: float, **options: Any) -> list[Span]:
        found = timeline(self.events, created_at=START, end=at(end), launched=self.launched, **options)
        check(found, end)
        return found

    def seconds(self, end: float, **options: Any) -> dict[str, float]:
        totals = total(self.spans(end, **options))
        return {name: each.total_seconds() for name, each in totals.activities.items() if each}

    def parts(self, end: float) -> list[tuple[str, float, float]]:
        return [
            (span.phase or span.activity.value, second_of(span.start), second_of(span.end)) for span in self.spans(end)
        ]


def at(second: float) -> datetime:
    return START + timedelta(seconds=second)


def second_of(time: datetime) -> float:
    return (time - START).total_seconds()


def check(spans: list[Span], end: float) -> None:
    """The spans are a partition, and so are the totals."""
    edges = [START, *(span.end for span in spans)]
    assert [span.start for span in spans] == edges[: len(spans)]
    assert all(span.start < span.end for span in spans)
    assert edges[-1] == at(end) or not spans
    whole = edges[-1] - START
    totals = total(spans)
    assert totals.total == whole == sum(totals.activities.values(), timedelta())
    assert sum(totals.startup.values(), timedelta()) == totals.activities[Activity.STARTUP]
    for drawn in (simplified(spans, 5), simplified(spans, 1)):
        assert sum((span.duration for span in drawn), timedelta()) == whole
    attempts = totals_by_attempt(spans).values()
    outside = [span.duration for span in spans if span.attempt is None]
    assert sum((each.total for each in attempts), timedelta()) + sum(outside, timedelta()) == whole


@st.composite
def histories(draw: st.DrawFn) -> tuple[History, float]:
    """Draw a walk through the table of statuses, with reports of its attempts at any time within it."""
    job = History()
    status, now = JobStatus.QUEUED, 0.0
    pause = st.floats(min_value=0, max_value=100)
    for _ in range(draw(st.integers(min_value=0, max_value=25))):
        if status in FINAL:
            break
        now += draw(pause)
        status = draw(st.sampled_from(sorted(ALLOWED[status])))
        job.moves((now - draw(st.sampled_from([0.0, 0.0, 7.0])), status.value))  # some worker's clock is behind
        if job.attempts and draw(st.booleans()):
            job.launched[job.attempt] = draw(st.one_of(st.none(), st.builds(at, pause)))
        for _ in range(draw(st.integers(min_value=0, max_value=6)) if job.attempts else 0):
            job.reports(
                draw(st.floats(min_value=0, max_value=now + 1)),
                draw(
                    st.sampled_from(
                        [
                            "phase.finished",
                            "generation.started",
                            "evaluation",
                            "checkpoint.saved",
                            "checkpoint.registered",
                            "export.finished",
                            "training.started",
                            "progress.stalled",
                        ]
                    )  # fmt: skip
                ),
                seconds=draw(pause),
                blocked_seconds=draw(pause),
                final=draw(st.booleans()),
                step=draw(st.integers(min_value=0, max_value=3)),
                generation=draw(st.integers(min_value=0, max_value=3)),
                phase=draw(st.sampled_from(["data", "first_step"])),
                is_hang=draw(st.booleans()),
            )
    return job, now + draw(pause)
