"""Attempts that do not finish their first step in time are retried, without the nodes whose agents did not join."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.utils import timezone

from athanor.backends.fake.backend import World
from athanor.clusters.models import NodeIncident, Pool
from athanor.dispatch import observe, rendezvous_rounds
from athanor.dispatch.services import nodes_to_avoid
from athanor.jobs import services
from athanor.jobs.models import Attempt, Job
from tests.control_plane import drive
from trainer.contract.node_rendezvous import JoinRequest
from trainer.contract.run import EndClass

Submit = Callable[..., Job]
pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("bucket")]


def start_without_a_first_step(world: World, job: Job, joined: tuple[int, ...] = ()) -> Attempt:
    """Start an attempt on nodes n0, n1, ..., of which so many join, and let the time for its first step pass."""
    attempt = drive.start(job)
    nodes = job.resolved_spec["resources"]["nodes"]
    world.placed[attempt.backend_name] = tuple(f"n{index}" for index in range(nodes))
    observe.observe_due()
    for index in joined:
        facts = {"name": f"n{index}", "address": f"10.0.0.{index}", "store_port": 1000}
        rendezvous_rounds.join(attempt, JoinRequest(node_index=index, **facts))
    Attempt.objects.update(launched_at=timezone.now() - observe.STARTUP_LIMIT - timedelta(seconds=1))
    drive.settle()
    assert drive.status_of(job) == ("pausing", "startup_timeout")
    return drive.attempt_of(job)


def test_a_start_that_never_comes_to_a_first_step_is_retried_twice(submit: Submit, world: World) -> None:
    job = submit()
    for number in (1, 2, 3):
        attempt = start_without_a_first_step(world, job)
        assert (attempt.number, world.cancelled[-1]) == (number, attempt.backend_name)
        drive.end(world, attempt, EndClass.STOPPED)
        assert drive.status_of(job) == ("queued" if number < 3 else "failed", "startup_timeout")
        assert drive.attempt_of(job).reason == "startup_timeout"
        Job.objects.update(act_after=None)
    detail = Job.objects.get(pk=job.pk).reason_detail
    assert detail == "1800 seconds. (It ended so after 2 retries, too.)"


@pytest.mark.parametrize(
    ("joined", "missing"), [((0, 1, 3), ["n2"]), ((1,), ["n0", "n2", "n3"]), ((), []), ((0, 1, 2, 3), [])]
)
def test_the_next_attempt_avoids_the_nodes_whose_agents_did_not_join(
    submit: Submit, pool: Pool, world: World, joined: tuple[int, ...], missing: list[str]
) -> None:
    pool.nodes = 12
    pool.save()
    job = submit(resources={"nodes": 4, "processes_per_node": 1, "cluster": "fake"})
    attempt = start_without_a_first_step(world, job, joined)
    drive.end(world, attempt, EndClass.STOPPED)
    said = f"1800 seconds. No agent has joined from {', '.join(missing)}." if missing else "1800 seconds."
    assert Job.objects.get(pk=job.pk).reason_detail == said
    found = NodeIncident.objects.filter(job_id=job.pk).order_by("node__name").values_list("node__name", "kind")
    assert list(found) == [(name, "startup_timeout") for name in missing]
    assert nodes_to_avoid(job) == tuple(missing)


@pytest.mark.parametrize(("action", "status"), [("stop", "cancelled"), ("pause", "paused")])
def test_a_user_stops_or_pauses_what_did_not_start_in_time(
    submit: Submit, world: World, action: str, status: str
) -> None:
    job = submit()
    attempt = start_without_a_first_step(world, job)
    {"stop": services.request_stop, "pause": services.request_pause}[action](job.id, "rosa")
    drive.end(world, attempt, EndClass.STOPPED)
    assert drive.status_of(job)[0] == status


def test_a_fault_that_ends_it_meanwhile_is_shown_and_decides(submit: Submit, world: World) -> None:
    job = submit()
    attempt = start_without_a_first_step(world, job)
    drive.end(world, attempt, EndClass.DATA_ERROR, "no such file")
    assert drive.status_of(job) == ("failed", "data_error")
