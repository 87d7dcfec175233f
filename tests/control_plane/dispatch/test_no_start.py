"""Attempts that their cluster does not start give their slots back."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.utils import timezone

from athanor.backends.base import Obstacle
from athanor.backends.fake.backend import World
from athanor.clusters.models import NodeIncident
from athanor.dispatch import observe
from athanor.jobs.models import Attempt, Job
from tests.control_plane import drive

Submit = Callable[..., Job]
pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("bucket")]
SAID = "It waits for room in the world."


def give_up(world: World, job: Job, obstacle: Obstacle) -> Attempt:
    """Submit an attempt that waits, and let its cluster give it up."""
    world.full, world.gives_up = True, None
    Job.objects.update(act_after=None)
    drive.start(job)
    observe.observe_due()
    assert drive.status_of(job) == ("starting", "")
    world.gives_up = obstacle
    observe.observe_due()
    assert drive.status_of(job) == ("pausing", obstacle.value)
    for _ in range(3):
        drive.settle()
    attempt = drive.attempt_of(job)
    assert (attempt.status, attempt.launched_at) == ("ended", None), "it has used no node"
    return attempt


def test_without_room_the_job_waits_in_the_queue_longer_each_time(submit: Submit, world: World) -> None:
    job = submit(retry={"max_free": 0})
    for minutes in (1, 2, 4, 8, 16, 30, 30):
        attempt = give_up(world, job, Obstacle.NO_ROOM)
        assert (attempt.status, attempt.reason, attempt.reason_detail) == ("ended", "no_room", SAID)
        job.refresh_from_db()
        assert (job.status, job.reason, job.reason_detail) == ("queued", "no_room", SAID)
        assert job.act_after is not None
        pause = job.act_after - timezone.now()
        assert timedelta(minutes=minutes, seconds=-20) < pause <= timedelta(minutes=minutes)
    world.full, world.gives_up = False, None
    Job.objects.update(act_after=None)
    drive.run(job)
    assert drive.status_of(job)[0] == "running"
    assert not NodeIncident.objects.exists()


def test_without_room_a_job_waits_no_longer_than_its_limit(submit: Submit, world: World) -> None:
    job = submit(wait_limit_seconds=3600)
    queued_at = Job.objects.get(pk=job.pk).queued_at
    for _ in range(2):
        give_up(world, job, Obstacle.NO_ROOM)
        job.refresh_from_db()
        assert (job.queued_at, job.expires_at) == (queued_at, queued_at + timedelta(hours=1))


def test_its_slots_are_free_for_another_job_meanwhile(submit: Submit, world: World) -> None:
    first, second = (submit(resources={"processes_per_node": 8, "cluster": "fake"}) for _ in range(2))
    assert first.pool.slots == first.slots == 8
    give_up(world, first, Obstacle.NO_ROOM)
    assert drive.status_of(second)[0] == "queued"
    world.full, world.gives_up = False, None
    drive.run(second)
    assert drive.status_of(second)[0] == "running"


def test_what_cannot_be_started_is_retried_twice_and_no_node_is_blamed(submit: Submit, world: World) -> None:
    job = submit()
    for number in (1, 2, 3):
        attempt = give_up(world, job, Obstacle.CANNOT_START)
        assert (attempt.number, attempt.reason) == (number, "cannot_start")
        assert drive.status_of(job) == ("queued" if number < 3 else "failed", "cannot_start")
    assert Job.objects.get(pk=job.pk).reason_detail == f"{SAID} (It ended so after 2 retries, too.)"
    assert not NodeIncident.objects.exists()


def test_an_attempt_that_has_begun_is_not_given_up(submit: Submit, world: World) -> None:
    job = submit()
    drive.run(job)
    world.pending.add(drive.attempt_of(job).backend_name)
    world.full, world.gives_up = True, Obstacle.NO_ROOM
    observe.observe_due()
    assert drive.status_of(job)[0] == "running"
