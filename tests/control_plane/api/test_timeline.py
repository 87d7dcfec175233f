"""The times of a job as the API shows them: the same in all places, and those of its event log."""

from collections.abc import Callable
from datetime import datetime
from itertools import pairwise
from typing import Any

import pytest

from athanor.backends.fake.backend import World
from athanor.jobs import services, transitions
from athanor.jobs.models import Job, JobEvent
from athanor.jobs.reasons import Reason
from athanor.telemetry.models import Progress
from tests.control_plane import drive
from tests.control_plane.conftest import Api
from trainer.contract.run import EndClass

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _bucket(bucket: str) -> None:
    """Logs are archived at the end of an attempt."""


def seconds_in(job: Job, *statuses: str) -> float:
    """Return how long a job was in these statuses, by its event log."""
    moves = JobEvent.objects.filter(job=job, type="job.status").order_by("seq")
    times = [(job.created_at, "queued"), *((move.time, move.data["to"]) for move in moves)]
    return sum((until - since).total_seconds() for (since, status), (until, _) in pairwise(times) if status in statuses)


def timeline_of(api: Api, job: Job) -> dict[str, Any]:
    """Return a job's timeline, after checking that it is a partition and agrees with the job itself."""
    found = api.get(f"/api/v1/jobs/{job.id}/timeline").json()
    job.refresh_from_db()
    spans, timings = found["spans"], found["timings"]
    assert datetime.fromisoformat(spans[0]["start"]) == job.created_at
    assert all(before["end"] == after["start"] for before, after in pairwise(spans))
    assert timings["total_seconds"] == pytest.approx(
        sum(value for name, value in timings.items() if name not in ("total_seconds", "startup")), abs=1e-6
    )
    if job.finished_at is not None:
        assert datetime.fromisoformat(spans[-1]["end"]) == job.finished_at
        assert api.get(f"/api/v1/jobs/{job.id}").json()["timings"] == timings
        listed = api.get("/api/v1/jobs?expand=timings").json()["items"]
        assert [each["timings"] for each in listed if each["id"] == job.id] == [timings]
    return found


def waited(found: dict[str, Any]) -> float:
    """Return how long the job waited for an attempt."""
    spans = [each for each in found["spans"] if each["activity"] == "queued" and each["attempt"] is None]
    return sum(
        (datetime.fromisoformat(each["end"]) - datetime.fromisoformat(each["start"])).total_seconds() for each in spans
    )


def test_a_pause_is_counted_as_a_pause(world: World, submit: Callable[..., Job], api: Api) -> None:
    job = submit()
    attempt = drive.run(job)
    Progress.objects.filter(job=job).update(values={"time/step_seconds": 2.0})
    assert api.get(f"/api/v1/jobs/{job.id}").json()["progress"]["eta_seconds"] > 0
    services.request_pause(job.id, actor="ada")
    drive.settle()
    drive.end(world, attempt, EndClass.STOPPED)
    assert drive.status_of(job)[0] == "paused"
    assert timeline_of(api, job)["spans"][-1]["activity"] == "paused"
    shown = api.get(f"/api/v1/jobs/{job.id}").json()
    assert shown["running_since"] is None
    assert shown["progress"]["eta_seconds"] is None
    assert shown["ran_seconds"] > 0
    services.request_resume(job.id, actor="ada")
    drive.end(world, drive.run(job), EndClass.COMPLETED)
    found = timeline_of(api, job)
    assert found["timings"]["paused_seconds"] == pytest.approx(seconds_in(job, "paused"), abs=1e-6)
    assert waited(found) == pytest.approx(seconds_in(job, "queued"), abs=1e-6)
    assert [each["attempt"] for each in found["attempts"]] == [1, 2]


def test_a_retry_waits_and_loses_what_was_not_saved(world: World, submit: Callable[..., Job], api: Api) -> None:
    job = submit()
    drive.end(world, drive.run(job), EndClass.PROCESS_KILLED)
    Job.objects.filter(pk=job.pk).update(act_after=None)
    drive.end(world, drive.run(job), EndClass.COMPLETED)
    found = timeline_of(api, job)
    first, second = found["attempts"]
    assert first["timings"]["lost_seconds"] > 0 == first["timings"]["training_seconds"]
    assert second["timings"]["lost_seconds"] == 0 < second["timings"]["training_seconds"]
    assert waited(found) == pytest.approx(seconds_in(job, "queued"), abs=1e-6)


def test_a_preempted_job_is_queued_not_paused(world: World, submit: Callable[..., Job], api: Api) -> None:
    job = submit()
    attempt = drive.run(job)
    job.refresh_from_db()
    transitions.preempt_at_checkpoint(job, Reason.RECLAIMED, "for another", actor="scheduling")
    drive.end(world, attempt, EndClass.STOPPED)
    assert drive.status_of(job)[0] == "queued"
    drive.end(world, drive.run(job), EndClass.COMPLETED)
    found = timeline_of(api, job)
    assert found["timings"]["paused_seconds"] == 0
    assert waited(found) == pytest.approx(seconds_in(job, "queued"), abs=1e-6)


def test_a_job_that_has_just_been_submitted_is_queued(world: World, submit: Callable[..., Job], api: Api) -> None:
    found = timeline_of(api, submit())
    assert [span["activity"] for span in found["spans"]] == ["queued"]
    assert found["attempts"] == []
