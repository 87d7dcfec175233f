"""Admission against the database: concurrent workers never admit above the slots."""

import threading
from collections.abc import Callable

import pytest
from django.db import connection
from django.db.models import Sum

from athanor.accounts.models import Team
from athanor.backends.fake.backend import World
from athanor.clusters.models import Node, Pool
from athanor.jobs.models import Job
from athanor.jobs.states import HOLDING
from athanor.quotas.models import QuotaNode
from athanor.scheduling import services
from athanor.scheduling.policy.cycle import decide
from tests.control_plane import drive
from trainer.contract.run import EndClass


def holding() -> int:
    rows = Job.objects.filter(status__in=[status.value for status in HOLDING])
    return rows.aggregate(total=Sum("slots", default=0))["total"]


@pytest.mark.django_db(transaction=True)
def test_eight_workers_at_once_never_admit_above_the_slots(submit: Callable[..., Job]) -> None:
    for number in range(20):
        submit(name=f"job-{number}", resources={"cluster": "fake", "processes_per_node": 3})
    barrier = threading.Barrier(8)
    failures = []

    def worker() -> None:
        try:
            barrier.wait()
            services.admit()
        except Exception as error:  # noqa: BLE001 - a thread's error must reach the test
            failures.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=worker) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert holding() == 6, "two jobs of three processes fit eight slots"


@pytest.mark.django_db
def test_waiting_jobs_say_why_and_say_it_once(submit: Callable[..., Job], team: Team) -> None:
    QuotaNode.objects.filter(team=team).update(max_running_jobs=1)
    first, second = submit(name="first"), submit(name="second")
    for _ in range(3):
        services.admit()
    assert drive.status_of(first)[0] == "admitted"
    assert drive.status_of(second) == ("queued", "quota_exceeded")
    assert second.events.filter(type="job.waiting").count() == 1


def add_nodes(pool: Pool, states: list[str]) -> None:
    """Replace the inventory of the pool's cluster by nodes in these states."""
    Node.objects.filter(cluster=pool.cluster).delete()
    for number, state in enumerate(states):
        Node.objects.create(
            cluster=pool.cluster, name=f"n{number}", state=state, accelerator="cpu", slots=8, listed=True
        )


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("states", "slots"),
    [
        ([], 16),  # no inventory: all nodes are taken to be in service
        (["ready"] * 3, 16),
        (["ready", "ready", "down"], 16),  # the spare node has replaced it
        (["ready", "ready", "drained"], 16),
        (["ready", "down", "down"], 8),
        (["down"] * 3, 0),
    ],
)
def test_jobs_get_the_slots_in_service_without_the_spare_nodes(
    submit: Callable[..., Job], pool: Pool, states: list[str], slots: int
) -> None:
    Pool.objects.filter(pk=pool.pk).update(nodes=3, spare_nodes=1)
    add_nodes(pool, states)
    for number in range(8):
        submit(name=f"job-{number}", resources={"cluster": "fake", "processes_per_node": 4})
    services.admit()
    assert holding() == slots


def change(pool: Pool, **values: int) -> None:
    for name, value in values.items():
        setattr(pool, name, value)
    pool.save()


def why_waits(job: Job) -> tuple[str, str]:
    (decision,) = [each for each in decide(services.snapshot_now()) if each.job_id == job.id]
    return decision.detail, decision.unblocks


@pytest.mark.django_db
def test_a_larger_number_of_spare_nodes_stops_no_running_job(
    submit: Callable[..., Job], pool: Pool, world: World
) -> None:
    change(pool, nodes=2)
    eight = {"cluster": "fake", "processes_per_node": 8}
    first, second = [submit(name=name, resources=eight) for name in ("first", "second")]
    attempts = [drive.run(job) for job in (first, second)]
    change(pool, spare_nodes=1)
    later = submit(name="later", resources=eight)
    services.admit()
    assert [drive.status_of(job)[0] for job in (first, second, later)] == ["running", "running", "queued"]
    assert not Job.objects.exclude(desired="run").exists()
    lacks = "0 of 8 slots of fake/cpu are free, and 8 are needed."
    assert why_waits(later) == (lacks, "Starts when running jobs release 16 slots more.")
    drive.end(world, attempts[0], EndClass.COMPLETED)
    services.admit()
    assert drive.status_of(later)[0] == "queued", "the other running job has all slots that jobs may hold"
    spare = f"{lacks} 8 more are free on spare nodes, for runs that lose a node."
    assert why_waits(later) == (spare, "Starts when running jobs release 8 slots more.")
    drive.end(world, attempts[1], EndClass.COMPLETED)
    services.admit()
    assert drive.status_of(later)[0] == "admitted"


@pytest.mark.django_db
def test_a_queued_job_that_needs_the_spare_nodes_does_not_get_them_and_its_reason_names_them(
    submit: Callable[..., Job], pool: Pool
) -> None:
    change(pool, nodes=2, slots_per_node=4)
    job = submit(resources={"cluster": "fake", "nodes": 2, "processes_per_node": 4})
    change(pool, spare_nodes=1)
    services.admit()
    assert drive.status_of(job) == ("queued", "waiting_for_capacity")
    assert why_waits(job) == (
        "8 slots are needed, and jobs may hold 4 of the 8 of fake/cpu: 4 are on spare nodes, which stay free for "
        "runs that lose a node.",
        "Starts when an administrator lowers spare_nodes of fake/cpu; a fork with at most 4 slots could start before.",
    )
    change(pool, spare_nodes=0)
    services.admit()
    assert drive.status_of(job)[0] == "admitted"
