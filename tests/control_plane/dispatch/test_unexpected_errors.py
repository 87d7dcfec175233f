"""Unexpected errors of background work on one row: retried with pauses, then its job ends with `platform_error`."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError
from django.utils import timezone

from athanor.accounts import failures
from athanor.accounts.failures import MAX_PAUSE, TRIES, TRIES_BEFORE_RECORD
from athanor.accounts.models import AuditEvent, WorkFailure
from athanor.backends.fake.backend import World
from athanor.clusters.models import Pool
from athanor.core import task_triggers
from athanor.dispatch import finalise, plan_builder, stop
from athanor.jobs import reasons, services
from athanor.jobs.models import Attempt, Job
from athanor.reconcilers import backlog
from athanor.scheduling import services as scheduling
from tests.control_plane import drive
from trainer.contract.run import EndClass

pytestmark = pytest.mark.django_db
Submit = Callable[..., Job]


def fail(*_: Any, **__: Any) -> None:
    raise KeyError("planted")


def pass_pause() -> None:
    """End the pause of every failed row."""
    WorkFailure.objects.update(next_try_at=timezone.now() - timedelta(seconds=1))
    for model in (Job, Attempt):
        model.objects.update(lease_token=None, lease_until=None)


def tries() -> int:
    return WorkFailure.objects.values_list("tries", flat=True).get()


def state_of(task: str) -> backlog.State:
    return next(each for each in backlog.states() if each.reconciler.task == task)


def test_an_end_without_a_reason_ends_its_job_and_holds_up_no_other(
    world: World, bucket: str, pool: Pool, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(reasons.REASON_OF_END, EndClass.DATA_ERROR)
    broken, good = submit(), submit()
    attempt, other = drive.run(broken), drive.attempt_of(good)
    drive.beat(other, step=1)
    drive.end(world, attempt, EndClass.DATA_ERROR)
    drive.end(world, other, EndClass.COMPLETED)
    assert drive.status_of(good) == ("succeeded", "completed")
    for number in range(1, TRIES):
        assert drive.status_of(broken)[0] == "running"
        assert tries() == number
        finalise.finalise_due()
        assert tries() == number, "it pauses"
        pass_pause()
        finalise.finalise_due()
    assert drive.status_of(broken) == ("failed", "platform_error")
    detail = Job.objects.values_list("reason_detail", flat=True).get(pk=broken.pk)
    assert detail == f"Finalising job {broken.pk} failed {TRIES} times (KeyError)."
    whole = submit(resources={"processes_per_node": 8, "cluster": "fake"})
    scheduling.admit()
    assert drive.status_of(whole)[0] == "admitted", "its slots are free"


def test_administrators_see_what_fails_and_what_was_given_up(
    world: World, bucket: str, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submit()
    attempt = drive.run(job)
    monkeypatch.setattr(finalise, "_finalise", fail)
    drive.end(world, attempt, EndClass.COMPLETED)
    assert (state_of(task_triggers.FINALISE).rows_failing, state_of(task_triggers.FINALISE).rows_given_up) == (1, 0)
    for _ in range(1, TRIES):
        pass_pause()
        finalise.finalise_due()
    assert (state_of(task_triggers.FINALISE).rows_failing, state_of(task_triggers.FINALISE).rows_given_up) == (0, 1)
    failing = AuditEvent.objects.get(action="work.failing")
    assert failing.after == {"task": task_triggers.FINALISE, "tries": TRIES_BEFORE_RECORD, "error": "KeyError"}
    ended = AuditEvent.objects.get(action="job.abandon")
    assert (ended.target_id, ended.team_id, ended.before) == (job.id, job.team_id, {"status": "running"})


def test_an_attempt_that_cannot_be_submitted_ends_with_its_job(
    world: World, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_builder, "launch_plan", fail)
    job = submit()
    drive.start(job)
    for _ in range(1, TRIES):
        pass_pause()
        drive.dispatch()
    assert drive.status_of(job) == ("failed", "platform_error")
    assert (drive.attempt_of(job).status, drive.attempt_of(job).reason) == ("ended", "platform_error")


def test_a_job_that_cannot_be_stopped_is_failed(world: World, submit: Submit, monkeypatch: pytest.MonkeyPatch) -> None:
    job = submit()
    drive.run(job)
    services.request_stop(job.id, actor="ada")
    monkeypatch.setattr(stop, "_stop", fail)
    for _ in range(TRIES):
        pass_pause()
        stop.stop_due()
    assert drive.status_of(job) == ("failed", "platform_error")


def test_a_cluster_that_only_its_operator_can_repair_fails_no_job(world: World, submit: Submit, pool: Pool) -> None:
    job = submit()
    scheduling.admit()
    pool.cluster.config = {"unknown": 1}
    pool.cluster.save()
    for _ in range(TRIES + 1):
        pass_pause()
        drive.dispatch()
    assert drive.status_of(job)[0] == "dispatching"


def test_an_error_of_the_database_is_not_counted(
    world: World, bucket: str, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any) -> None:
        raise OperationalError("the connection is lost")

    attempt = drive.run(submit())
    monkeypatch.setattr(finalise, "_finalise", away)
    drive.end(world, attempt, EndClass.COMPLETED)
    assert not WorkFailure.objects.exists()


def test_a_success_ends_the_count_and_pauses_grow_up_to_a_limit(db: None) -> None:
    pauses = []
    for _ in range(TRIES + 8):
        pass_pause()
        failures.run_isolated(task_triggers.FINALISE, "work", fail, give_up=fail)
        row = WorkFailure.objects.get()
        pauses.append(row.next_try_at - row.last_at)
    assert row.given_up_at is None, "giving it up failed too"
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[1]) == (timedelta(seconds=15), timedelta(seconds=30))
    assert pauses[-1] == MAX_PAUSE
    pass_pause()
    failures.run_isolated(task_triggers.FINALISE, "work", lambda: None)
    assert not WorkFailure.objects.exists()


def test_a_claimed_row_stays_claimed_for_the_pause(
    world: World, bucket: str, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paused rows do not take the places of others in a batch."""
    attempt = drive.run(submit())
    monkeypatch.setattr(finalise, "_finalise", fail)
    drive.end(world, attempt, EndClass.COMPLETED)
    for _ in range(7):
        pass_pause()
        finalise.finalise_due()
    until = Job.objects.values_list("lease_until", flat=True).get()
    assert until > timezone.now() + MAX_PAUSE - timedelta(seconds=30)
