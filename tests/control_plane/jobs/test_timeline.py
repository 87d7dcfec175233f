"""The time of a job is split without gaps, whatever its history, and each part is what happened then."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from athanor.jobs.states import ALLOWED, FINAL, JobStatus
from athanor.jobs.timeline import Activity, Span, simplified, timeline, total, totals_by_attempt

START = datetime(2026, 1, 1, tzinfo=UTC)
TRAINING = [JobStatus.ADMITTED, JobStatus.DISPATCHING, JobStatus.STARTING, JobStatus.RUNNING]


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


def test_a_run_without_faults() -> None:
    job = History()
    job.starts(2)
    job.reports(7, "phase.finished", phase="import", seconds=2.5)
    job.reports(8, "phase.finished", phase="rendezvous", seconds=0.5)
    job.reports(9, "evaluation", step=0, seconds=1, loss=2.0)
    job.reports(10, "phase.finished", phase="first_step", seconds=0.5)
    job.moves((14, "running"))
    job.reports(20, "checkpoint.saved", step=5, seconds=3, blocked_seconds=0.5, final=False)
    job.reports(30, "evaluation", step=10, seconds=2, loss=1.0)
    job.reports(32, "checkpoint.saved", step=10, seconds=1, blocked_seconds=1, final=True)
    job.reports(34, "export.finished", seconds=2)
    job.moves((35, "succeeded"))
    assert job.parts(35) == [
        ("queued", 0, 2),
        ("dispatch", 2, 4),
        ("launch", 4, 4.5),
        ("import", 4.5, 7),
        ("launch", 7, 7.5),
        ("rendezvous", 7.5, 8),
        ("evaluation", 8, 9),
        ("launch", 9, 9.5),
        ("first_step", 9.5, 10),
        ("training", 10, 16.5),
        ("checkpoint", 16.5, 17),
        ("training", 17, 28),
        ("evaluation", 28, 30),
        ("checkpoint", 30, 32),
        ("export", 32, 34),
        ("finishing", 34, 35),
    ]


def test_a_pause_is_neither_queue_nor_training() -> None:
    job = History()
    job.starts(2)
    job.moves((6, "running"), (20, "pausing"))
    job.reports(24, "checkpoint.saved", step=5, seconds=2, blocked_seconds=1, final=True)
    job.moves((25, "paused"), (1000, "queued"))
    job.starts(1005)
    job.moves((1010, "running"), (1030, "succeeded"))
    assert job.seconds(1030) == {
        "queued": 7, "startup": 4 + 5, "training": 14 + 20, "finishing": 1 + 1, "checkpoint": 3, "paused": 975,
    }  # fmt: skip
    assert set(totals_by_attempt(job.spans(1030))) == {1, 2}


def test_what_no_checkpoint_kept_is_lost() -> None:
    job = History()
    job.starts(2)
    job.reports(6, "phase.finished", phase="first_step", seconds=1)
    job.moves((7, "running"))
    job.reports(20, "checkpoint.saved", step=5, seconds=4, blocked_seconds=0, final=False)
    job.moves((50, "queued"))  # its node died
    job.starts(52)
    job.moves((60, "running"))
    assert job.seconds(70) == {"queued": 4, "startup": 4 + 8, "training": 10 + 10, "lost": 34}


def test_a_restart_in_place_loses_the_steps_since_the_checkpoint() -> None:
    job = History()
    job.starts(0)
    job.reports(4, "phase.finished", phase="first_step", seconds=1)
    job.moves((5, "running"))
    job.reports(20, "checkpoint.registered", step=5)
    job.reports(30, "generation.started", generation=1, because="a process was killed")
    job.reports(33, "phase.finished", phase="first_step", seconds=1)
    job.moves((40, "succeeded"))
    assert job.parts(40) == [
        ("dispatch", 0, 2),
        ("launch", 2, 3),
        ("first_step", 3, 4),
        ("training", 4, 20),
        ("lost", 20, 30),
        ("launch", 30, 32),
        ("first_step", 32, 33),
        ("training", 33, 40),
    ]


def test_a_run_whose_end_is_seen_in_one_sweep_has_trained() -> None:
    job = History()
    job.starts(0)
    job.reports(3, "phase.finished", phase="first_step", seconds=0.5)
    job.reports(8, "export.finished", seconds=1)
    job.moves((9, "running"), (9, "succeeded"))
    assert job.seconds(9) == {"startup": 3, "training": 4, "export": 1, "finishing": 1}


def test_the_queue_of_the_cluster_is_a_queue() -> None:
    job = History()
    job.starts(1)
    job.launched[job.attempt] = None
    assert job.seconds(100) == {"queued": 1 + 97, "startup": 2}
    job.launched[job.attempt] = at(90)
    assert job.seconds(100) == {"queued": 1 + 87, "startup": 2 + 10}


def test_a_job_that_prepares_data_does_not_train() -> None:
    job = History()
    job.starts(1)
    job.moves((5, "running"))
    assert job.seconds(10, trains=False) == {"queued": 1, "startup": 4, "preparing": 5}


def test_a_wait_for_data_that_another_job_prepares_is_part_of_the_start_up_also_of_a_job_that_only_prepares() -> None:
    for trains in (False, True):
        job = History()
        job.starts(1)
        job.moves((6, "running"))
        job.reports(16, "phase.finished", phase="wait_for_data", seconds=10)
        job.reports(18, "phase.finished", phase="data", seconds=2)
        if trains:
            job.reports(20, "phase.finished", phase="first_step", seconds=2)
        spent = job.seconds(26, trains=trains)
        if trains:
            assert spent == {"queued": 1, "startup": 19, "training": 6}
        else:
            assert spent == {"queued": 1, "startup": 2 + 3 + 10, "preparing": 10}
        assert total(job.spans(26, trains=trains)).startup["wait_for_data"] == timedelta(seconds=10)


def test_a_dispatch_that_failed_belongs_to_no_attempt() -> None:
    job = History()
    job.moves((1, "admitted"), (3, "queued"))
    assert job.seconds(10) == {"queued": 8, "startup": 2}
    assert totals_by_attempt(job.spans(10)) == {}


def test_what_a_trainer_reports_cannot_break_it() -> None:
    job = History()
    job.starts(1)
    for data in (
        {},
        {"seconds": "long"},
        {"seconds": -1},
        {"seconds": 1e300},
        {"seconds": 10**400},
        {"seconds": float("nan")},
        {"seconds": True, "step": []},
    ):
        for kind in ("phase.finished", "evaluation", "checkpoint.saved", "export.finished", "generation.started"):
            job.reports(5, kind, **{"phase": {"a": 1}, **data})
    job.moves((9, "running"), (10, "failed"))
    assert sum(job.seconds(10).values()) == 10


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
                        ]
                    )  # fmt: skip
                ),
                seconds=draw(pause),
                blocked_seconds=draw(pause),
                final=draw(st.booleans()),
                step=draw(st.integers(min_value=0, max_value=3)),
                generation=draw(st.integers(min_value=0, max_value=3)),
                phase=draw(st.sampled_from(["data", "first_step"])),
            )
    return job, now + draw(pause)


@given(histories(), st.booleans())
def test_the_parts_of_any_history_sum_to_its_wall_time(drawn: tuple[History, float], trains: bool) -> None:
    job, end = drawn
    spans = timeline(job.events, created_at=START, end=at(end), launched=job.launched, trains=trains)
    check(spans, second_of(spans[-1].end) if spans else 0)
    moves = [event for event in job.events if event.type == "job.status"]
    final = [event for event in moves if JobStatus(event.data["to"]) in FINAL]
    expected = min(max(event.time for event in [*moves, *final]), at(end)) if final else at(end)
    assert (spans[-1].end if spans else START) == max(expected, START)
