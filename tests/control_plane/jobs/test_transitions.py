"""Only the table's moves are made, each with its event, and the tables are enforced by the database where it can."""

from collections.abc import Callable

import pytest
from django.db import IntegrityError, transaction

from athanor.jobs import transitions
from athanor.jobs.models import Attempt, Job, JobEvent
from athanor.jobs.reasons import Reason
from athanor.jobs.states import ALLOWED, JobStatus
from tests.control_plane import drive

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
