"""Observation of a cluster: in batches, by one worker at a time, writing only changes."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from athanor.backends.fake.backend import FakeBackend, World
from athanor.clusters.models import Cluster
from athanor.core import leases
from athanor.dispatch import absence, observe
from athanor.jobs.models import Attempt, Job
from tests.control_plane import drive

Submit = Callable[..., Job]
pytestmark = pytest.mark.django_db


@pytest.fixture
def six_running(submit: Submit, world: World, monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """Six running jobs, observed in three batches."""
    monkeypatch.setattr(observe, "BATCH", 2)
    jobs = [submit(name=f"job-{number}") for number in range(6)]
    for job in jobs:
        drive.run(job)
    return jobs


def test_the_guard_against_a_bulk_drop_looks_at_the_whole_cluster(six_running: list[Job], world: World) -> None:
    """All attempts of the first two batches are absent; the third one is present, which makes the absence credible."""
    for job in six_running[:4]:
        world.forget(drive.attempt_of(job).backend_name)
    for _ in range(absence.ABSENCES_TO_BELIEVE):
        drive.time_passes(60)
        observe.observe_due()
    ended = set(Attempt.objects.filter(status="ended").values_list("job__name", flat=True))
    assert ended == {f"job-{number}" for number in range(4)}


def test_when_all_are_denied_one_batch_is_no_proof(six_running: list[Job], world: World) -> None:
    world.running.clear()
    for number in range(absence.ABSENCES_TO_BELIEVE_OF_ALL):
        assert not Attempt.objects.filter(status="ended").exists(), number
        drive.time_passes(60)
        observe.observe_due()
    assert Attempt.objects.filter(status="ended").count() == 6


def test_a_sweep_that_brings_nothing_new_writes_no_attempt_and_no_job(six_running: list[Job]) -> None:
    with CaptureQueriesContext(
        connection,
    ) as queries:
        observe.observe_due()
    written = [query["sql"] for query in queries if query["sql"].startswith(("UPDATE", "INSERT"))]
    assert written
    assert all('"clusters_cluster"' in sql for sql in written), written


def test_the_nodes_are_known_of_a_run_that_continues_on_another_node(
    submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submit()
    drive.run(job)
    attempt = drive.attempt_of(job)
    original = FakeBackend.observe

    def moved(self: FakeBackend, handles: list) -> dict:
        found = original(self, handles)
        return {handle: replace(each, nodes=("n7",)) for handle, each in found.items()}

    assert attempt.native_nodes != ["n7"]
    monkeypatch.setattr(FakeBackend, "observe", moved)
    observe.observe_due()
    attempt.refresh_from_db()
    assert (attempt.phase, attempt.native_nodes) == ("running", ["n7"])


def test_one_worker_sweeps_a_cluster_at_a_time(
    six_running: list[Job], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (lease,) = leases.claim(Cluster.objects.all(), seconds=30, limit=1)
    asked: list[int] = []
    monkeypatch.setattr(FakeBackend, "observe", lambda self, handles: asked.append(len(handles)))
    observe.observe_due()
    assert asked == []
    leases.release(Cluster, lease)


def test_a_worker_that_was_away_for_longer_than_its_lease_applies_nothing(
    six_running: list[Job], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = FakeBackend.observe

    def slow(self: FakeBackend, handles: list) -> object:
        Cluster.objects.update(lease_until=timezone.now() - timedelta(seconds=1))
        return original(self, handles)

    monkeypatch.setattr(FakeBackend, "observe", slow)
    world.finish(drive.attempt_of(six_running[0]).backend_name, 1)
    observe.observe_due()
    assert not Attempt.objects.filter(status="ended").exists()


def test_an_attempt_that_is_being_submitted_is_not_judged_by_an_older_listing(submit: Submit, world: World) -> None:
    job = submit()
    attempt = drive.start(job)
    Attempt.objects.update(status="prepared", lease_until=timezone.now() + timedelta(seconds=30))
    Job.objects.update(status="stopping", reason="stopped_by_user")
    world.forget(attempt.backend_name)
    observe.observe_due()
    assert Attempt.objects.get(pk=attempt.pk).absent_count == 0


def test_a_worker_that_is_killed_holds_up_one_row(submit: Submit, world: World) -> None:
    """Found by `make chaos` (seed 2): the leases of a killed worker delayed its jobs by a minute."""
    jobs = [submit(name=f"job-{number}") for number in range(3)]
    claimed = leases.claim_each(Job.objects.order_by("id"), seconds=60, limit=10)
    assert next(claimed).pk == jobs[0].id
    assert Job.objects.filter(lease_until__isnull=False).count() == 1
    assert [lease.pk for lease in claimed] == [jobs[1].id, jobs[2].id], "each one once"
