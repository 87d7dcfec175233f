"""Attempts on a cluster with its own queue, nodes and states."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.utils import timezone

from athanor.backends.base import Cause
from athanor.backends.fake.backend import World
from athanor.clusters.models import NodeIncident
from athanor.dispatch import observe, services, stop
from athanor.jobs import services as services_of_jobs
from athanor.jobs.models import Attempt, Job
from athanor.scheduling import services as scheduling
from athanor.telemetry import logs
from tests.control_plane import drive
from tests.control_plane.conftest import Api
from trainer.contract.run import EndClass

Submit = Callable[..., Job]
pytestmark = pytest.mark.django_db


@pytest.fixture
def pending(submit: Submit, world: World) -> Attempt:
    """Return an attempt that was submitted while its cluster was full."""
    world.full = True
    job = submit(time_limit_seconds=60)
    drive.start(job)
    observe.observe_due()
    return drive.attempt_of(job)


def age(job: Job, seconds: float) -> None:
    """Move all stored times back by this much."""
    ago = timedelta(seconds=seconds)
    for name in ("launched_at", "submitted_at", "created_at"):
        for attempt in Attempt.objects.filter(job=job):
            if (value := getattr(attempt, name)) is not None:
                Attempt.objects.filter(pk=attempt.pk).update(**{name: value - ago})
    Job.objects.filter(pk=job.pk).update(queued_at=timezone.now() - ago)


def test_what_waits_in_the_clusters_own_queue_says_so_and_uses_up_no_limit(pending: Attempt, world: World) -> None:
    assert (pending.phase, pending.native_state) == ("pending", "waiting")
    assert pending.explanation == "It waits for room in the world."
    assert pending.launched_at is None
    age(pending.job, 40 * 24 * 3600)
    observe.observe_due()
    assert drive.status_of(pending.job) == ("starting", "")
    world.full = False
    observe.observe_due()
    launched = drive.attempt_of(pending.job)
    assert launched.phase == "running"
    assert launched.launched_at is not None
    assert timezone.now() - launched.launched_at < timedelta(seconds=30)
    age(pending.job, 61)
    observe.observe_due()
    assert drive.status_of(pending.job) == ("stopping", "deadline")


def test_one_that_waits_there_for_longer_than_its_limit_expires(submit: Submit, world: World) -> None:
    world.full = True
    job = submit(wait_limit_seconds=100)
    drive.start(job)
    age(job, 101)
    observe.observe_due()
    assert drive.status_of(job) == ("stopping", "waited_too_long")
    stop.stop_due()
    drive.settle()
    assert drive.status_of(job) == ("expired", "waited_too_long")


def test_one_that_is_paused_there_leaves_that_queue_and_is_held_in_ours(pending: Attempt, world: World) -> None:
    services_of_jobs.request_pause(pending.job_id, actor="ada")
    stop.stop_due()
    assert world.cancelled == [pending.backend_name]
    drive.settle()
    scheduling.admit()
    assert drive.status_of(pending.job) == ("queued", "held")
    world.full = False
    services_of_jobs.request_resume(pending.job_id, actor="ada")
    assert drive.run(pending.job).number == 2
    assert drive.status_of(pending.job)[0] == "running"


@pytest.mark.parametrize(
    ("cause", "status", "reason"),
    [
        (Cause.PREEMPTED, "queued", "preempted"),
        (Cause.SPOT_RECLAIMED, "queued", "spot_reclaimed"),
        (Cause.NODE_LOST, "queued", "node_lost"),
        (Cause.OUT_OF_MEMORY, "queued", "out_of_memory"),
        (Cause.LAUNCH_FAILED, "queued", "launch_failed"),
        (Cause.TIME_LIMIT, "failed", "deadline"),
        (Cause.CANCELLED, "cancelled", "stopped_by_admin"),
        (Cause.DELETED, "queued", "interrupted"),
    ],
)
def test_why_it_ended_there_decides_what_follows(
    submit: Submit, world: World, cause: Cause, status: str, reason: str
) -> None:
    job = submit()
    attempt = drive.run(job)
    world.end(attempt.backend_name, cause)
    drive.settle()
    assert drive.status_of(job) == (status, reason)


@pytest.mark.parametrize("reported", [EndClass.STOPPED, EndClass.COLLECTIVE_TIMEOUT, EndClass.PROCESS_KILLED])
def test_the_cluster_knows_better_than_an_agent_to_whom_something_was_done(
    submit: Submit, world: World, reported: EndClass
) -> None:
    job = submit()
    attempt = drive.run(job)
    drive.report(attempt, reported)
    world.end(attempt.backend_name, Cause.NODE_LOST)
    drive.settle()
    assert drive.status_of(job) == ("queued", "node_lost")


def test_an_agent_that_failed_by_itself_knows_better_than_its_cluster(submit: Submit, world: World) -> None:
    job = submit()
    attempt = drive.run(job)
    drive.report(attempt, EndClass.LOSS_DIVERGED)
    world.end(attempt.backend_name, Cause.NODE_LOST)
    drive.settle()
    assert drive.status_of(job) == ("failed", "loss_diverged")


def test_a_fault_is_noted_at_its_nodes_and_a_second_one_keeps_the_job_from_them(submit: Submit, world: World) -> None:
    job = submit()
    pool = job.pool
    pool.nodes = 4
    pool.save()
    for count in (1, 2):
        attempt = drive.run(job)
        Attempt.objects.filter(pk=attempt.pk).update(native_nodes=["n7"])
        world.end(attempt.backend_name, Cause.NODE_LOST)
        drive.settle()
        Job.objects.update(act_after=None)
        assert NodeIncident.objects.filter(node__name="n7", kind="node_lost", job_id=job.id).count() == count
        assert services.nodes_to_avoid(Job.objects.get(pk=job.pk)) == (() if count == 1 else ("n7",))
    pool.nodes = 1  # no other is there
    pool.save()
    assert services.nodes_to_avoid(Job.objects.get(pk=job.pk)) == ()


def test_what_its_agent_could_not_say_is_in_the_output_that_the_cluster_kept(
    submit: Submit, world: World, api: Api
) -> None:
    job = submit(retry={"max_free": 0})
    attempt = drive.start(job)
    world.written[attempt.backend_name] = "first\nModuleNotFoundError: No module named 'trainer'\n"
    answer = api.send("GET", f"jobs/{job.id}/attempts/1/output")
    assert "ModuleNotFoundError" in answer.json()["text"]
    more = api.send("GET", f"jobs/{job.id}/attempts/1/output?cursor={answer.json()['cursor']}")
    assert more.json()["text"] == ""
    assert api.send("GET", f"jobs/{job.id}/attempts/1/output?cursor=-1").json()["code"] == "invalid_cursor"
    assert api.send("GET", f"jobs/{job.id}/attempts/2/output").status_code == 404
    world.finish(attempt.backend_name, 127)
    drive.settle()
    assert drive.status_of(job) == ("failed", "launch_failed")
    drive.settle()
    page = logs.backwards(job, logs.Sought(), after=-1, limit=10)
    assert [line.text for line in page.lines] == ["first", "ModuleNotFoundError: No module named 'trainer'"]


@pytest.mark.parametrize("is_connected", [False, True])
def test_what_an_agent_wrote_that_never_connected_is_kept_before_its_cluster_forgets_it(
    submit: Submit, world: World, bucket: str, is_connected: bool
) -> None:
    job = submit()
    attempt = drive.start(job)
    observe.observe_due()
    if is_connected:
        drive.beat(attempt, step=0)
    world.written[attempt.backend_name] = "connecting\nno route to host\n"
    services_of_jobs.request_stop(job.id, "ada")
    stop.stop_due()
    assert world.cancelled == [attempt.backend_name]
    world.written[attempt.backend_name] = ""  # as Kubernetes does when a Job is ended by its deadline
    world.finish(attempt.backend_name, None)
    drive.settle()
    assert drive.status_of(job) == ("cancelled", "stopped_by_user")
    lines = [line.text for line in logs.backwards(job, logs.Sought(), after=-1, limit=10).lines]
    assert lines == ([] if is_connected else ["connecting", "no route to host"])
