"""Pause, resume, dependencies and expiry: the desired state and the transitions that follow."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from athanor.backends.fake.backend import World
from athanor.core.errors import Conflict
from athanor.dispatch import stop
from athanor.jobs import services
from athanor.jobs.models import Attempt, Job
from athanor.scheduling import services as scheduling
from tests.control_plane import drive
from trainer.contract.run import EndClass

Submit = Callable[..., Job]
pytestmark = pytest.mark.django_db


def pause(job: Job) -> None:
    services.request_pause(job.id, actor="ada")


def resume(job: Job) -> None:
    services.request_resume(job.id, actor="ada")


def test_a_running_job_pauses_gives_its_slots_back_and_resumes_as_a_new_attempt(
    submit: Submit, world: World, bucket: str
) -> None:
    job = submit(resources={"cluster": "fake", "processes_per_node": 8})
    other = submit(name="other", resources={"cluster": "fake", "processes_per_node": 8})
    attempt = drive.run(job)
    pause(job)
    drive.settle()
    assert drive.status_of(job) == ("pausing", "paused_by_user")
    assert world.cancelled == [attempt.backend_name]
    drive.end(world, attempt, EndClass.STOPPED)
    assert drive.status_of(job) == ("paused", "paused_by_user")
    assert drive.attempt_of(job).reason == "paused_by_user"
    scheduling.admit()
    assert drive.status_of(other)[0] == "admitted", "the slots are free"
    drive.end(world, drive.run(other), EndClass.COMPLETED)
    resume(job)
    second = drive.run(job)
    assert (second.number, drive.status_of(job)[0]) == (2, "running")


def test_a_job_that_waits_is_held_and_released(submit: Submit, world: World) -> None:
    job = submit()
    pause(job)
    scheduling.admit()
    assert drive.status_of(job) == ("queued", "held")
    resume(job)
    scheduling.admit()
    assert drive.status_of(job)[0] == "admitted"


def test_an_admitted_job_goes_back_when_it_is_paused(submit: Submit, world: World) -> None:
    job = submit()
    scheduling.admit()
    pause(job)
    drive.dispatch()
    scheduling.admit()
    assert drive.status_of(job) == ("queued", "held")
    assert not world.created


def test_a_job_that_finishes_while_it_pauses_has_succeeded(submit: Submit, world: World, bucket: str) -> None:
    job = submit()
    attempt = drive.run(job)
    pause(job)
    stop.stop_due()
    drive.end(world, attempt, EndClass.COMPLETED)
    assert drive.status_of(job) == ("succeeded", "completed")


def test_a_fault_while_it_pauses_still_pauses_and_one_that_would_come_again_fails(
    submit: Submit, world: World, bucket: str
) -> None:
    for end_class, expected in [(EndClass.PROCESS_KILLED, "paused"), (EndClass.DATA_ERROR, "failed")]:
        job = submit(name=end_class.value)
        attempt = drive.run(job)
        pause(job)
        stop.stop_due()
        drive.end(world, attempt, end_class)
        assert drive.status_of(job)[0] == expected


@pytest.mark.parametrize("paused_first", [True, False])
def test_a_paused_or_pausing_job_can_be_cancelled(
    submit: Submit, world: World, bucket: str, paused_first: bool
) -> None:
    job = submit()
    attempt = drive.run(job)
    pause(job)
    stop.stop_due()
    if paused_first:
        drive.end(world, attempt, EndClass.STOPPED)
    services.request_stop(job.id, actor="ada")
    drive.settle()
    if not paused_first:
        drive.end(world, attempt, EndClass.STOPPED)
    scheduling.admit()
    assert drive.status_of(job) == ("cancelled", "stopped_by_user")


def test_what_is_ending_is_neither_paused_nor_resumed(submit: Submit, world: World) -> None:
    job = submit()
    services.request_stop(job.id, actor="ada")
    with pytest.raises(Conflict, match="asked to stop"):
        pause(job)
    scheduling.admit()
    with pytest.raises(Conflict, match="cancelled"):
        resume(job)


def test_pausing_twice_is_pausing_once(submit: Submit, world: World) -> None:
    job = submit()
    pause(job)
    pause(job)
    assert job.events.filter(type="job.pause_requested").count() == 1


@pytest.fixture
def submit_after(api: Any, spec: dict[str, Any], world: World) -> Callable[..., Any]:
    def make(*job_ids: str) -> Any:
        return api.send("POST", "jobs", {**spec, "name": "downstream", "after": list(job_ids)})

    return make


def test_a_job_waits_for_those_it_comes_after(
    submit: Submit, submit_after: Callable[..., Any], world: World, bucket: str
) -> None:
    upstream = submit()
    downstream = Job.objects.get(pk=submit_after(upstream.id).json()["id"])
    attempt = drive.run(upstream)
    assert drive.status_of(downstream) == ("queued", "dependency")
    assert upstream.id in Job.objects.get(pk=downstream.pk).reason_detail
    drive.end(world, attempt, EndClass.COMPLETED)
    scheduling.admit()
    assert drive.status_of(downstream)[0] == "admitted"


def test_a_job_whose_upstream_did_not_succeed_fails_and_names_it(
    submit: Submit, submit_after: Callable[..., Any], world: World, bucket: str
) -> None:
    upstream = submit()
    downstream = Job.objects.get(pk=submit_after(upstream.id).json()["id"])
    drive.end(world, drive.run(upstream), EndClass.DATA_ERROR)
    scheduling.admit()
    assert drive.status_of(downstream) == ("failed", "dependency_failed")
    assert upstream.id in Job.objects.get(pk=downstream.pk).reason_detail


def test_a_job_of_another_team_is_no_upstream(
    submit: Submit, submit_after: Callable[..., Any], other_team: Any
) -> None:
    foreign = submit()
    Job.objects.filter(pk=foreign.pk).update(team=other_team)
    answer = submit_after(foreign.id)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/after/0"


def test_a_job_that_waits_too_long_expires(submit: Submit, world: World) -> None:
    job = submit(wait_limit_seconds=60, resources={"cluster": "fake", "processes_per_node": 8})
    blocker = submit(name="blocker", priority="high", resources={"cluster": "fake", "processes_per_node": 8})
    scheduling.admit()
    assert drive.status_of(blocker)[0] == "admitted"
    Job.objects.filter(pk=job.pk).update(expires_at=timezone.now() - timedelta(seconds=1))
    scheduling.admit()
    assert drive.status_of(job) == ("expired", "waited_too_long")


def test_an_admitted_job_no_longer_expires(submit: Submit, world: World) -> None:
    job = submit(wait_limit_seconds=60)
    assert job.expires_at is not None
    scheduling.admit()
    assert Job.objects.get(pk=job.pk).expires_at is None


def test_a_paused_job_expires_too(submit: Submit, world: World, bucket: str) -> None:
    job = submit(wait_limit_seconds=60)
    attempt = drive.run(job)
    pause(job)
    stop.stop_due()
    drive.end(world, attempt, EndClass.STOPPED)
    assert Attempt.objects.get(job=job).status == "ended"
    Job.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    scheduling.admit()
    assert drive.status_of(job) == ("expired", "waited_too_long")


def test_pause_and_resume_over_http(api: Any, submit: Submit, world: World) -> None:
    job = submit()
    answer = api.send("POST", f"jobs/{job.id}:pause")
    assert (answer.status_code, answer.json()["desired"]) == (202, "pause")
    assert api.send("POST", f"jobs/{job.id}:resume").json()["desired"] == "run"
    api.send("POST", f"jobs/{job.id}:cancel")
    refused = api.send("POST", f"jobs/{job.id}:pause")
    assert (refused.status_code, refused.json()["code"]) == (409, "job_is_ending")
