"""Only transitions of the table are possible, each with its event; the database enforces what it can."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from athanor.backends.fake.backend import World
from athanor.core.errors import Conflict
from athanor.jobs import services, signals, transitions
from athanor.jobs.models import Attempt, Job, JobEvent
from athanor.jobs.reasons import Reason
from athanor.jobs.states import ALLOWED, FINAL, JobStatus
from athanor.scheduling import services as scheduling
from tests.control_plane import drive
from tests.examples import examples
from trainer.contract.run import EndClass

pytestmark = pytest.mark.django_db


def test_a_move_off_the_table_is_refused_and_changes_nothing(submit: Callable[..., Job]) -> None:
    job = submit()
    forbidden = set(JobStatus) - ALLOWED[JobStatus.QUEUED]
    for target in sorted(forbidden):
        with pytest.raises(transitions.IllegalTransition), transaction.atomic():
            transitions.move(job, target, reason=Reason.COMPLETED, actor="test")
    assert drive.status_of(job)[0] == "queued"
    assert JobEvent.objects.filter(job=job, type="job.status").count() == 0


def test_a_final_state_needs_an_ending_reason(submit: Callable[..., Job]) -> None:
    job = submit()
    with pytest.raises(AssertionError, match="needs an ending reason"), transaction.atomic():
        transitions.move(job, JobStatus.CANCELLED, actor="test")
    with pytest.raises(AssertionError, match="needs an ending reason"), transaction.atomic():
        transitions.move(job, JobStatus.FAILED, reason=Reason.WAITING_FOR_CAPACITY, actor="test")


def test_a_job_has_at_most_one_live_attempt(submit: Callable[..., Job]) -> None:
    job = submit()
    drive.start(job)
    with pytest.raises(IntegrityError), transaction.atomic():
        Attempt.objects.create(job=job, number=2, backend_name="athanor-second")


def test_each_event_says_who_did_it(submit: Callable[..., Job]) -> None:
    job = submit()
    drive.start(job)
    assert list(JobEvent.objects.filter(job=job).order_by("seq").values_list("type", "actor")) == [
        ("job.submitted", "ada"),
        ("job.status", "scheduling"),
        ("job.status", "dispatch"),
        ("job.status", "dispatch"),
    ]


def test_every_transition_sends_its_signal_once(world: World, submit: Callable[..., Job]) -> None:
    sent: list[tuple[str, str, str]] = []

    def note(job: Job, source: JobStatus, to: JobStatus, **_: Any) -> None:
        assert job.status == to.value == drive.status_of(job)[0], "the job is saved before its signal"
        sent.append((job.id, source.value, to.value))

    jobs = [submit(name=f"n{number}") for number in range(3)]
    signals.moved.connect(note)
    try:
        scheduling.admit()  # all three by one statement
        assert [each[1:] for each in sent] == [("queued", "admitted")] * 3
        drive.end(world, drive.run(jobs[0]), EndClass.COMPLETED)
    finally:
        signals.moved.disconnect(note)
    written = JobEvent.objects.filter(type="job.status").values_list("job_id", "data__from", "data__to")
    assert sorted(sent) == sorted(written)
    assert (jobs[0].id, "running", "succeeded") in sent


@hypothesis_settings(
    max_examples=examples(25),
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(choices=st.lists(st.integers(min_value=0, max_value=11), max_size=14))
def test_events_are_gapless_whatever_way_a_job_takes(submit: Callable[..., Job], choices: list[int]) -> None:
    """User requests and platform transitions in any order that the table allows."""
    job = submit()
    with transaction.atomic():
        for choice in choices:
            row = Job.objects.select_for_update(no_key=True).get(pk=job.pk)
            exits = sorted(ALLOWED[JobStatus(row.status)])
            if exits and choice % 4:
                ending = Reason.STOPPED_BY_USER if exits[choice % len(exits)] in FINAL else None
                transitions.move(row, exits[choice % len(exits)], reason=ending, actor="test")
            else:
                with suppress(Conflict):
                    (services.request_pause, services.request_resume, services.request_stop)[choice % 3](row.id, "ada")
    events = list(JobEvent.objects.filter(job=job).order_by("seq").values_list("seq", flat=True))
    assert events == list(range(1, len(events) + 1))
    assert Job.objects.get(pk=job.pk).event_seq == len(events)
