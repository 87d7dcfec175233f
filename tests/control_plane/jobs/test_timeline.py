"""The time of a job is split without gaps, whatever its history, and each part is what happened then."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from athanor.jobs.states import FINAL, JobStatus
from athanor.jobs.timeline import timeline, total, totals_by_attempt
from tests.control_plane.jobs.histories import START, History, at, check, histories, second_of


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


def test_what_is_lost_begins_at_the_checkpoint_that_was_resumed_from() -> None:
    """The newest checkpoint was damaged, so the workers resumed from the one before it."""
    job = History()
    job.starts(0)
    job.reports(4, "training.started", step=0)
    job.reports(5, "phase.finished", phase="first_step", seconds=1)
    job.moves((5, "running"))
    job.reports(21, "checkpoint.saved", step=10, seconds=1, blocked_seconds=0, final=False)
    job.reports(31, "checkpoint.saved", step=20, seconds=1, blocked_seconds=0, final=False)
    job.reports(40, "generation.started", generation=1, because="a process was killed")
    assert job.seconds(45) == {"startup": 5 + 5, "training": 25, "lost": 10}
    job.reports(42, "training.started", step=10)
    job.reports(45, "phase.finished", phase="first_step", seconds=1)
    job.moves((60, "succeeded"))
    assert job.seconds(60) == {"startup": 5 + 5, "training": 15 + 15, "lost": 20}


def test_a_restart_from_the_start_repeats_earlier_groups_of_workers_too() -> None:
    job = History()
    job.starts(0)
    job.reports(3, "training.started", step=0)
    job.reports(5, "phase.finished", phase="first_step", seconds=1)
    job.moves((5, "running"))
    job.reports(20, "checkpoint.saved", step=10, seconds=0, blocked_seconds=0, final=False)
    job.moves((25, "queued"))
    job.starts(25)
    job.reports(29, "training.started", step=10)
    job.reports(30, "phase.finished", phase="first_step", seconds=1)
    job.moves((30, "running"), (50, "queued"))
    job.starts(50)
    job.reports(54, "training.started", step=0)  # the checkpoint could not be read
    job.reports(55, "phase.finished", phase="first_step", seconds=1)
    job.moves((55, "running"), (100, "succeeded"))
    assert job.seconds(100) == {"startup": 15, "lost": 20 + 20, "training": 45}


@pytest.mark.parametrize(("resumed", "lost"), [(41, 0), (40, 1), (31, 10), (22, 19)])
def test_a_restart_from_a_shadow_checkpoint_repeats_what_was_done_after_it(resumed: int, lost: int) -> None:
    """No event says when a copy was made: a step takes as long as the others between two known ones, here a second."""
    job = History()
    job.starts(0)
    job.reports(3, "training.started", step=0)
    job.reports(5, "phase.finished", phase="first_step", seconds=1)
    job.moves((5, "running"))
    job.reports(25, "checkpoint.saved", step=21, seconds=0, blocked_seconds=0, final=False)
    job.reports(45, "generation.started", generation=1, because="a process was killed", step=41)
    job.reports(46, "training.started", step=resumed)
    job.reports(47, "phase.finished", phase="first_step", seconds=1)
    job.moves((60, "succeeded"))
    expected = {"startup": 5 + 2, "lost": lost, "training": 53 - lost}
    assert job.seconds(60) == {name: seconds for name, seconds in expected.items() if seconds}


def test_the_steps_before_a_hang_are_not_counted_until_its_end() -> None:
    job = History()
    job.starts(0)
    job.reports(3, "training.started", step=0)
    job.reports(5, "phase.finished", phase="first_step", seconds=1)
    job.moves((5, "running"))
    job.reports(45, "progress.stalled", seconds=20, is_hang=True)
    job.reports(46, "generation.started", generation=1, because="hang", step=21)
    job.reports(47, "training.started", step=16)
    job.reports(48, "phase.finished", phase="first_step", seconds=1)
    job.moves((60, "succeeded"))
    assert job.seconds(60) == {"startup": 5 + 2, "training": 15 + 12, "lost": 5, "stalled": 21}


def test_where_neither_the_state_that_was_resumed_from_nor_a_later_one_is_reported_the_loss_is_not_known() -> None:
    job = History()
    job.starts(0)
    job.reports(3, "training.started", step=0)
    job.reports(5, "phase.finished", phase="first_step", seconds=1)
    job.moves((5, "running"))
    job.reports(40, "generation.started", generation=1, because="a process was killed")  # an older agent: no step
    job.reports(41, "training.started", step=10)
    job.reports(42, "phase.finished", phase="first_step", seconds=1)
    job.moves((50, "succeeded"))
    assert job.seconds(50) == {"startup": 5 + 2, "unattributed": 35, "training": 8}


def test_a_hang_lasts_until_its_workers_end_and_is_no_lost_work() -> None:
    job = History()
    job.starts(0)
    job.reports(5, "phase.finished", phase="first_step", seconds=1)
    job.moves((5, "running"))
    job.reports(10, "checkpoint.saved", step=5, seconds=0, blocked_seconds=0, final=False)
    job.reports(40, "progress.stalled", seconds=20, is_hang=False)
    job.reports(60, "progress.stalled", seconds=40, is_hang=True)
    job.reports(70, "generation.started", generation=1, because="a hang")
    job.reports(75, "phase.finished", phase="first_step", seconds=1)
    job.moves((80, "succeeded"))
    assert job.seconds(80) == {"startup": 5 + 5, "training": 5 + 5, "lost": 10, "stalled": 50}


def test_a_stall_that_ended_by_itself_is_no_hang_and_an_evaluation_explains_one() -> None:
    job = History()
    job.starts(0)
    job.reports(5, "phase.finished", phase="first_step", seconds=1)
    job.moves((5, "running"))
    job.reports(40, "progress.stalled", seconds=20, is_hang=False)
    job.reports(45, "evaluation", step=5, seconds=15, loss=1.0)
    job.moves((60, "succeeded"))
    assert job.seconds(60) == {"startup": 5, "training": 15 + 15, "stalled": 10, "evaluation": 15}
    job.events[-1:-1] = [type(job.events[0])("progress.stalled", at(20), job.attempt, {"seconds": 5, "is_hang": True})]
    assert job.seconds(60) == {"startup": 5, "training": 10 + 15, "stalled": 15, "evaluation": 15}


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


@given(histories(), st.booleans())
def test_the_parts_of_any_history_sum_to_its_wall_time(drawn: tuple[History, float], trains: bool) -> None:
    job, end = drawn
    spans = timeline(job.events, created_at=START, end=at(end), launched=job.launched, trains=trains)
    check(spans, second_of(spans[-1].end) if spans else 0)
    moves = [event for event in job.events if event.type == "job.status"]
    final = [event for event in moves if JobStatus(event.data["to"]) in FINAL]
    expected = min(max(event.time for event in [*moves, *final]), at(end)) if final else at(end)
    assert (spans[-1].end if spans else START) == max(expected, START)
