"""Limits at submission and upload: the error names the field, the value, the limit, its node and the remedy."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from athanor.accounts.models import Team, User
from athanor.artifacts import quota_checks, usage
from athanor.artifacts.models import Checkpoint
from athanor.clusters.models import Pool
from athanor.core.errors import Conflict
from athanor.jobs import services
from athanor.jobs.models import Job
from athanor.quotas.models import QuotaNode
from athanor.quotas.selectors import path_of_team
from athanor.specs.validation import parse_spec
from tests.control_plane import drive
from tests.control_plane.conftest import SPEC, Api

pytestmark = pytest.mark.django_db
TWO = {"cluster": "fake", "processes_per_node": 2}


def limit(name: str, **limits: int) -> QuotaNode:
    node = QuotaNode.objects.get(name=name)
    QuotaNode.objects.filter(pk=node.pk).update(**limits)
    return node


@pytest.fixture
def group(team: Team, other_team: Team) -> QuotaNode:
    """Both teams are in it."""
    made = QuotaNode.objects.create(name="research", parent=QuotaNode.objects.get(parent=None))
    QuotaNode.objects.filter(team__isnull=False).update(parent=made)
    return made


@pytest.mark.parametrize("whose", ["red", "research", "organisation"])
@pytest.mark.parametrize(
    ("name", "most", "pointer", "field"),
    [
        ("max_slots_per_job", 1, "/resources/processes_per_node", {"resources": TWO}),
        ("max_slots", 1, "/resources/processes_per_node", {"resources": TWO}),
        ("max_run_seconds", 60, "/time_limit_seconds", {"time_limit_seconds": 61}),
    ],
)  # fmt: skip
def test_what_can_never_run_is_refused(
    api: Api, pool: Pool, group: QuotaNode, whose: str, name: str, most: int, pointer: str, field: dict[str, Any]
) -> None:
    limit(whose, **{name: most})
    refused = api.send("POST", "jobs", {**SPEC, **field})
    body = refused.json()
    assert (refused.status_code, body["code"], body["errors"][0]["pointer"]) == (422, "over_limit", pointer)
    detail = body["errors"][0]["detail"]
    assert all(str(part) in detail for part in (name, most, whose)), detail
    within = {"time_limit_seconds": most} if name == "max_run_seconds" else {"time_limit_seconds": 61}
    assert api.send("POST", "jobs", {**SPEC, **within}).status_code == 201


def test_a_plan_says_the_same(api: Api, pool: Pool, submit: Callable[..., Job]) -> None:
    limit("red", max_slots_per_job=1, max_queued_jobs=1)
    refused = api.send("POST", "jobs:plan", {**SPEC, "resources": TWO})
    assert (refused.status_code, refused.json()["code"]) == (422, "over_limit")
    before = api.send("POST", "jobs:plan", SPEC).json()["warnings"]
    submit()
    warned = api.send("POST", "jobs:plan", SPEC).json()["warnings"]
    assert [warning["code"] for warning in warned if warning not in before] == ["queue_full"]


def test_a_job_larger_than_its_pool_counts_as_the_pool(api: Api, pool: Pool) -> None:
    limit("red", max_slots_per_job=4)
    Pool.objects.filter(pk=pool.pk).update(slots_per_node=4)
    asked = {**SPEC, "resources": {"cluster": "fake", "processes_per_node": 8}}
    assert api.send("POST", "jobs", asked).status_code == 201


def test_a_full_queue_takes_no_more_until_one_starts(
    api: Api, pool: Pool, group: QuotaNode, api_of: Callable, make_user: Callable, other_team: Team
) -> None:
    """The limit counts the jobs of all teams of the group."""
    limit("research", max_queued_jobs=2)
    blue = api_of(make_user("bo", other_team), other_team)
    first = api.send("POST", "jobs", SPEC, idempotency_key="k1")
    assert blue.send("POST", "jobs", {**SPEC, "name": "second"}).status_code == 201
    full = api.send("POST", "jobs", {**SPEC, "name": "third"})
    body = full.json()
    assert (full.status_code, body["code"], body["limit"], body["waiting"]) == (409, "queue_full", 2, 2)
    assert "group research" in body["detail"] and body["remedy"]
    again = api.send("POST", "jobs", SPEC, idempotency_key="k1")
    assert (again.status_code, again["Idempotency-Replayed"]) == (201, "true"), "what was taken is answered again"
    drive.start(Job.objects.get(pk=first.json()["id"]))
    assert api.send("POST", "jobs", {**SPEC, "name": "third"}).status_code == 201


def test_limits_hold_for_forks_and_retries_too(api: Api, pool: Pool) -> None:
    job = api.send("POST", "jobs", SPEC).json()
    limit("red", max_queued_jobs=1)
    assert api.send("POST", f"jobs/{job['id']}:fork", {}).status_code == 409


@pytest.mark.django_db(transaction=True)
def test_eight_at_once_never_fill_a_queue_above_its_limit(
    user: User, team: Team, pool: Pool, submit: Callable[..., Job]
) -> None:
    submit(name="zero")
    limit("red", max_queued_jobs=3)
    limit("organisation", max_queued_jobs=4)
    barrier, outcomes = threading.Barrier(8), []

    def submitter(number: int) -> None:
        submission = services.Submission(
            user=user, team=team, pool=pool, dataset_ids=["dset_0"], written={**SPEC, "name": f"n{number}"},
            spec=parse_spec({**SPEC, "name": f"n{number}"}),
        )  # fmt: skip
        barrier.wait()
        try:
            services.submit(submission, None, quota_checks.check)
            outcomes.append("taken")
        except Conflict as error:
            outcomes.append(error.code)
        finally:
            connection.close()

    threads = [threading.Thread(target=submitter, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["queue_full"] * 6 + ["taken"] * 2
    assert Job.objects.count() == 3


def stored(job: Job, size: int) -> Checkpoint:
    manifest = {"files": [], "world_size": 1}
    attempt = job.attempts.get()
    return Checkpoint.objects.create(
        job=job, attempt=attempt, generation=0, step=Checkpoint.objects.count(), size_bytes=size, manifest=manifest
    )


def test_stored_bytes_are_counted_by_team_and_gone_ones_are_not(
    submit: Callable[..., Job], team: Team, bucket: str, api: Api
) -> None:
    job = submit()
    drive.start(job)
    first = stored(job, 100)
    stored(job, 50)
    assert api.generic("POST", "/api/v1/datasets?name=books", "word " * 4, content_type="text/plain").status_code == 201
    assert usage.stored_bytes() == {team.id: 170}
    Checkpoint.objects.filter(pk=first.pk).update(deleted_at=first.created_at)
    assert usage.stored_bytes([team.id]) == {team.id: 70}
    assert usage.stored_bytes([]) == {}


def test_above_the_storage_limit_data_and_jobs_are_refused_and_checkpoints_are_not(
    api: Api, submit: Callable[..., Job], group: QuotaNode, bucket: str, team: Team
) -> None:
    job = submit()
    drive.start(job)
    limit("research", max_storage_bytes=100)
    stored(job, 90)
    refused = api.generic("POST", "/api/v1/datasets?name=books", "word " * 4, content_type="text/plain")
    body = refused.json()
    assert (refused.status_code, body["code"], body["limit"], body["used"]) == (409, "storage_full", 100, 90)
    assert "20 more would come" in body["detail"] and "group research" in body["detail"]
    fits = api.generic("POST", "/api/v1/datasets?name=note", "word word", content_type="text/plain")
    assert fits.status_code == 201, fits.content
    stored(job, 50)
    with pytest.raises(Conflict, match="149"):
        usage.check(path_of_team(team))
    answer = api.send("POST", "jobs", SPEC)
    assert (answer.status_code, answer.json()["code"]) == (409, "storage_full")
