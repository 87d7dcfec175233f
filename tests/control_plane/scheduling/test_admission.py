"""Admission against the database: concurrent workers never admit above the slots."""

import threading
from collections.abc import Callable

import pytest
from django.db import connection
from django.db.models import Sum

from athanor.accounts.models import Team
from athanor.jobs.models import Job
from athanor.jobs.states import HOLDING
from athanor.quotas.models import QuotaNode
from athanor.scheduling import services
from tests.control_plane import drive


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
