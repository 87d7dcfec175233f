"""The life cycle of a job, with faults of its backend and the network."""

import json
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from athanor.artifacts import keys, storage
from athanor.artifacts.models import Artifact
from athanor.backends.fake.backend import FakeBackend, World
from athanor.core import leases, task_triggers
from athanor.core.errors import Misconfigured
from athanor.dispatch import absence, finalise, observe, stop
from athanor.dispatch import submit as dispatch_submit
from athanor.jobs import services
from athanor.jobs.models import Attempt, Job, JobEvent
from athanor.jobs.states import FINAL
from athanor.reconcilers.models import ReconcilerFailure
from athanor.scheduling import services as scheduling
from athanor.telemetry.models import Heartbeat
from tests.control_plane import drive
from trainer.contract.run import EndClass
from workers import tasks

Submit = Callable[..., Job]
pytestmark = pytest.mark.django_db


def test_a_job_goes_from_queued_to_succeeded_with_gapless_events(submit: Submit, world: World, bucket: str) -> None:
    job = submit()
    attempt = drive.run(job)
    assert drive.status_of(job) == ("running", "")
    drive.end(world, attempt, EndClass.COMPLETED)
    assert drive.status_of(job) == ("succeeded", "completed")
    events = list(JobEvent.objects.filter(job=job).order_by("seq"))
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    path = [event.data["to"] for event in events if event.type == "job.status"]
    assert path == ["admitted", "dispatching", "starting", "running", "succeeded"]


def test_a_lost_answer_to_submit_is_adopted_and_never_submitted_twice(submit: Submit, world: World) -> None:
    world.lose_answers = 1
    job = submit()
    attempt = drive.start(job)
    assert drive.status_of(job)[0] == "dispatching"
    drive.dispatch()
    assert drive.status_of(job)[0] == "starting"
    assert world.created == [attempt.backend_name]


def test_a_worker_killed_between_submit_and_commit_leaves_one_backend_job(
    submit: Submit, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submit()
    scheduling.admit()

    def killed(*_: object) -> None:
        raise SystemExit("kill -9")

    with monkeypatch.context() as patch:
        patch.setattr("athanor.dispatch.submit._accept", killed)
        with pytest.raises(SystemExit):
            drive.dispatch()
    attempt = drive.attempt_of(job)
    assert attempt.status == "prepared"
    assert world.created == [attempt.backend_name]
    drive.dispatch()
    assert drive.attempt_of(job).status == "prepared", "the dead worker's lease still holds"
    leases.release(Attempt, leases.Lease(attempt.pk, attempt.lease_token))
    drive.dispatch()
    assert drive.attempt_of(job).status == "submitted"
    assert world.created == [attempt.backend_name]


def test_a_backend_that_is_away_ends_nothing(submit: Submit, world: World) -> None:
    job = submit()
    drive.run(job)
    world.away = 5
    for _ in range(5):
        observe.observe_due()
    assert drive.status_of(job) == ("running", "")


def test_absence_is_believed_only_when_it_is_seen_twice(submit: Submit, world: World, bucket: str) -> None:
    job = submit(retry={"max_free": 0})
    attempt = drive.run(job)
    world.forget(attempt.backend_name)
    drive.settle()
    drive.time_passes(absence.HEARD_WITHIN.total_seconds())
    assert drive.status_of(job)[0] == "running"
    drive.settle()
    assert drive.status_of(job) == ("failed", "unknown_loss")


def test_listings_that_follow_each_other_at_once_are_no_two_witnesses(submit: Submit, world: World) -> None:
    job = submit()
    attempt = drive.start(job)
    world.empty_listings = 5
    for _ in range(5):
        drive.settle()
    assert Attempt.objects.get(pk=attempt.pk).absent_count == 5
    assert drive.status_of(job)[0] == "starting"


def test_an_agent_that_was_heard_a_moment_ago_is_alive_whatever_a_listing_says(submit: Submit, world: World) -> None:
    """Found by `make chaos` (seed 2): four live attempts were ended after two listings without them."""
    job, other = submit(name="one"), submit(name="other")
    attempt = drive.run(job)
    drive.run(other)
    submission = world.running.pop(attempt.backend_name)
    for _ in range(4):
        drive.time_passes(60)
        drive.beat(attempt, step=2)
        drive.settle()
    assert Attempt.objects.get(pk=attempt.pk).absent_count == 4
    assert drive.status_of(job)[0] == "running"
    world.running[attempt.backend_name] = submission
    drive.settle()
    assert Attempt.objects.values_list("absent_count", "absent_since").get(pk=attempt.pk) == (0, None)


def test_one_empty_listing_while_jobs_are_live_ends_none_of_them(submit: Submit, world: World) -> None:
    jobs = [submit(name=f"job-{number}") for number in range(3)]
    for job in jobs:
        drive.run(job)
    world.empty_listings = 3
    for _ in range(3):
        drive.settle()
    observe.observe_due()
    assert {drive.status_of(job)[0] for job in jobs} == {"running"}
    assert set(Attempt.objects.values_list("absent_count", flat=True)) == {0}


def test_an_infrastructure_fault_queues_the_job_again_with_a_new_attempt(
    submit: Submit, world: World, bucket: str
) -> None:
    job = submit()
    first = drive.run(job)
    drive.end(world, first, EndClass.STORAGE_ERROR, "away for 90 s")
    assert drive.status_of(job) == ("queued", "storage_error")
    assert scheduling.admit() == 0, "it waits for its backoff"
    Job.objects.update(act_after=None)
    second = drive.run(job)
    assert second.number == 2
    assert second.backend_name != first.backend_name
    drive.end(world, second, EndClass.COMPLETED)
    assert drive.status_of(job) == ("succeeded", "completed")


@pytest.mark.parametrize(
    ("end_class", "reason"),
    [
        (EndClass.DATA_ERROR, "data_error"),
        (EndClass.BAD_SPEC, "bad_spec"),
        (EndClass.LOSS_DIVERGED, "loss_diverged"),
    ],
)
def test_a_fault_that_would_come_again_is_not_retried(
    submit: Submit, world: World, bucket: str, end_class: EndClass, reason: str
) -> None:
    job = submit()
    drive.end(world, drive.run(job), end_class, "line 7 is not JSON")
    assert drive.status_of(job) == ("failed", reason)
    assert "line 7" in Job.objects.get(pk=job.pk).reason_detail


def test_charged_retries_are_counted(submit: Submit, world: World, bucket: str) -> None:
    job = submit(retry={"max_charged": 1})
    drive.end(world, drive.run(job), EndClass.USER_ERROR)
    assert drive.status_of(job) == ("queued", "user_error")
    Job.objects.update(act_after=None)
    drive.end(world, drive.run(job), EndClass.USER_ERROR)
    assert drive.status_of(job) == ("failed", "user_error")


@pytest.mark.parametrize("end_class", [EndClass.PROCESS_KILLED, EndClass.COLLECTIVE_TIMEOUT, EndClass.STORAGE_ERROR])
def test_faults_of_the_infrastructure_are_not_charged(
    submit: Submit, world: World, bucket: str, end_class: EndClass
) -> None:
    job = submit(retry={"max_charged": 0})
    for _ in range(2):
        drive.end(world, drive.run(job), end_class)
        assert drive.status_of(job)[0] == "queued"
        Job.objects.update(act_after=None)


def test_a_stop_that_nobody_of_ours_asked_for_is_an_interruption(submit: Submit, world: World, bucket: str) -> None:
    job = submit()
    attempt = drive.run(job)
    drive.end(world, attempt, EndClass.STOPPED)
    assert drive.status_of(job) == ("queued", "interrupted")
    assert drive.attempt_of(job).reason == "interrupted"


def test_an_end_reported_only_in_the_store_is_found(submit: Submit, world: World, bucket: str) -> None:
    job = submit()
    attempt = drive.run(job)
    drive.report(attempt, EndClass.DATA_ERROR, "no text")
    end = Attempt.objects.get(pk=attempt.pk).end_report
    Attempt.objects.filter(pk=attempt.pk).update(end_report=None)
    key = f"jobs/{job.id}/attempts/1/end.json"
    ciphertext, _ = keys.encryptor(job.id, job.team).encrypt(json.dumps(end).encode(), key)
    storage.put(key, ciphertext)
    world.forget(attempt.backend_name)
    drive.settle()
    drive.time_passes(absence.HEARD_WITHIN.total_seconds())
    drive.settle()
    assert drive.status_of(job) == ("failed", "data_error")


def test_a_forged_end_marker_is_not_believed(submit: Submit, world: World, bucket: str) -> None:
    job = submit(retry={"max_free": 0})
    attempt = drive.run(job)
    storage.put(f"jobs/{job.id}/attempts/1/end.json", b'{"end_class": "completed", "last_step": 10}')
    world.finish(attempt.backend_name, 0)
    drive.settle()
    assert drive.status_of(job) == ("failed", "unknown_loss")


def test_completion_without_a_model_is_no_success(submit: Submit, world: World, bucket: str) -> None:
    job = submit(retry={"max_free": 0})
    attempt = drive.run(job)
    drive.report(attempt, EndClass.COMPLETED)
    world.finish(attempt.backend_name, 0)
    drive.settle()
    assert drive.status_of(job) == ("failed", "platform_error")


def test_what_the_cluster_refuses_fails_with_its_words(submit: Submit, world: World, bucket: str) -> None:
    world.refuse = "no such partition"
    job = submit()
    drive.start(job)
    drive.settle()
    assert drive.status_of(job) == ("failed", "backend_rejected")
    assert Job.objects.get(pk=job.pk).reason_detail == "no such partition"


def test_the_time_limit_stops_and_fails_a_job(submit: Submit, world: World, bucket: str) -> None:
    job = submit(time_limit_seconds=60)
    attempt = drive.run(job)
    Attempt.objects.update(launched_at=timezone.now() - timedelta(seconds=61))
    drive.settle()
    assert drive.status_of(job) == ("stopping", "deadline")
    assert world.cancelled == [attempt.backend_name]
    drive.end(world, attempt, EndClass.STOPPED)
    assert drive.status_of(job) == ("failed", "deadline")


@pytest.mark.parametrize("offset", [timedelta(days=2), timedelta(days=-2), timedelta(seconds=10)])
def test_a_worker_whose_clock_is_wrong_decides_nothing(
    submit: Submit, world: World, bucket: str, offset: timedelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submit(time_limit_seconds=60)
    drive.run(job)
    now = timezone.now
    with monkeypatch.context() as wrong:
        wrong.setattr(timezone, "now", lambda: now() + offset)
        with pytest.raises(Misconfigured, match="the clock of this machine is"):
            tasks.watch()
    assert drive.status_of(job)[0] == "running"
    run = ReconcilerFailure.objects.get(task=task_triggers.OBSERVE)
    assert "the clock of this machine" in run.error
    assert run.failed_at is not None
    assert abs(run.failed_at - now()) < timedelta(minutes=1), "the database's clock says when"


def test_limits_are_compared_with_the_clock_of_the_database(
    submit: Submit, world: World, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submit(time_limit_seconds=60)
    drive.run(job)
    now = timezone.now
    with monkeypatch.context() as wrong:
        wrong.setattr(timezone, "now", lambda: now() + timedelta(days=2))
        observe.observe_due()
    assert drive.status_of(job)[0] == "running"


def test_a_silent_agent_is_a_matter_of_health_and_not_of_status(submit: Submit, world: World) -> None:
    job = submit()
    drive.run(job)
    Heartbeat.objects.update(received_at=timezone.now() - timedelta(minutes=5))
    observe.observe_due()
    assert Job.objects.values_list("status", "health").get(pk=job.pk) == ("running", "unknown")
    drive.beat(drive.attempt_of(job), step=2)
    observe.observe_due()
    assert Job.objects.get(pk=job.pk).health == "ok"


def _queued(job: Job) -> None:
    pass


def _admitted(job: Job) -> None:
    scheduling.admit()


def _dispatching(job: Job) -> None:
    scheduling.admit()
    dispatch_submit.prepare_due()


def _starting(job: Job) -> None:
    drive.start(job)


def _running(job: Job) -> None:
    drive.run(job)


@pytest.mark.parametrize("reach", [_queued, _admitted, _dispatching, _starting, _running])
def test_cancel_in_every_state_ends_in_cancelled(
    submit: Submit, world: World, bucket: str, reach: Callable[[Job], None]
) -> None:
    job = submit()
    reach(job)
    services.request_stop(job.id, actor="ada")
    for _ in range(4):
        scheduling.admit()
        drive.dispatch()
        drive.settle()
        drive.time_passes(absence.ABSENT_FOR.total_seconds())
        for name in list(world.running):
            if name in world.cancelled:
                drive.report(drive.attempt_of(job), EndClass.STOPPED)
                world.finish(name, 64)
    assert drive.status_of(job) == ("cancelled", "stopped_by_user")
    assert not world.running
    assert len(world.created) <= 1
    before = JobEvent.objects.filter(job=job).count()
    services.request_stop(job.id, actor="ada")
    assert JobEvent.objects.filter(job=job).count() == before, "cancel of a final job changes nothing"


def test_finalise_killed_midway_is_carried_on_by_another_worker(
    submit: Submit, world: World, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submit()
    attempt = drive.run(job)
    drive.register_model(attempt)
    drive.report(attempt, EndClass.COMPLETED)
    world.finish(attempt.backend_name, 0)
    observe.observe_due()

    def killed(*_: object) -> None:
        raise SystemExit("kill -9")

    with monkeypatch.context() as patch:
        patch.setattr("athanor.dispatch.finalise._apply", killed)
        with pytest.raises(SystemExit):
            finalise.finalise_due()
    assert drive.status_of(job)[0] == "running"
    Job.objects.update(lease_until=None)
    finalise.finalise_due()
    assert drive.status_of(job) == ("succeeded", "completed")
    assert Artifact.objects.filter(job=job, kind="log").count() <= 1


def test_no_backend_is_called_within_a_transaction(
    submit: Submit, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    depths = []
    outer = len(connection.savepoint_ids)
    original = FakeBackend.submit

    def watched(self: FakeBackend, submission: object) -> object:
        depths.append(len(connection.savepoint_ids) - outer)
        return original(self, submission)  # type: ignore[arg-type]

    monkeypatch.setattr(FakeBackend, "submit", watched)
    drive.start(submit())
    assert depths == [0]


def test_processes_that_do_not_end_when_asked_are_forced(
    submit: Submit, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    forced = []
    monkeypatch.setattr(FakeBackend, "cancel", lambda self, handle, *, force=False: forced.append(force))
    job = submit()
    drive.run(job)
    services.request_stop(job.id, actor="ada")
    for _ in range(6):
        stop.stop_due()
        Attempt.objects.update(cancel_sent_at=timezone.now() - stop.CANCEL_AGAIN_AFTER)
    assert forced == [False, False, False, True, True, True]
    assert drive.status_of(job)[0] == "stopping", "it ends only when the backend says so"


def test_one_jobs_error_does_not_hold_up_the_others(
    submit: Submit, world: World, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [submit(name=f"job-{number}") for number in range(3)]
    for job in jobs:
        attempt = drive.run(job)
        drive.register_model(attempt)
        drive.report(attempt, EndClass.COMPLETED)
        world.finish(attempt.backend_name, 0)
    original = finalise._ending

    def broken_for_the_first(attempt: Attempt, report: object) -> finalise.Ending:
        if attempt.job_id == jobs[0].id:
            raise RuntimeError("a bug")
        return original(attempt, report)

    monkeypatch.setattr("athanor.dispatch.finalise._ending", broken_for_the_first)
    drive.settle()
    assert [drive.status_of(job)[0] for job in jobs] == ["running", "succeeded", "succeeded"]


def test_final_jobs_have_no_live_attempt(submit: Submit, world: World, bucket: str) -> None:
    job = submit()
    drive.end(world, drive.run(job), EndClass.COMPLETED)
    assert Job.objects.get(pk=job.pk).status in {status.value for status in FINAL}
    assert not Attempt.objects.filter(job=job).exclude(status="ended").exists()
