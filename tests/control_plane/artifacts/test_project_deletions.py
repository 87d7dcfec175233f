"""Deletion of a project deletes what its jobs stored, frees its name, and can be undone."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone

from athanor.accounts.models import AuditEvent, Role, Team, User
from athanor.artifacts import deletions, keys, storage, usage
from athanor.artifacts.models import DataKey, Deletion
from athanor.core.errors import Conflict
from athanor.jobs.models import Job, Project
from athanor.jobs.states import JobStatus
from deploy.local.handle import wait_until
from tests.control_plane import drive
from tests.control_plane.artifacts.test_manifests import registered
from tests.control_plane.conftest import SPEC, Api
from trainer.contract.run import EndClass

pytestmark = pytest.mark.django_db


@pytest.fixture
def head(api_of: Any, make_user: Any, team: Team) -> Api:
    return api_of(make_user("hal", team, Role.ADMIN), team)


@pytest.fixture
def job(submit: Callable[..., Job], world: Any, bucket: str) -> Job:
    """An ended job of project vision, with a checkpoint."""
    made = submit(project="vision")
    attempt = drive.start(made)
    registered(attempt, 10)
    drive.report(attempt, EndClass.BAD_SPEC)
    world.finish(attempt.backend_name, 1)
    drive.settle()
    made.refresh_from_db()
    assert made.status == JobStatus.FAILED
    return made


def project() -> Project:
    return Project.objects.get(name="vision")


def test_a_project_goes_with_what_its_jobs_stored_and_comes_back(head: Api, job: Job, team: Team) -> None:
    row = project()
    preview = head.send("GET", f"projects/{row.id}/deletion").json()
    assert (preview["kind"], preview["checkpoints"], preview["contents"]) == ("project", 1, {"jobs": 1})
    assert preview["size_bytes"] == usage.stored_bytes([team.id])[team.id]

    deletion = head.send("DELETE", f"projects/{row.id}").json()
    assert (deletion["kind"], deletion["name"], deletion["state"]) == ("project", "vision", "pending")
    assert head.send("GET", f"projects/{row.id}").status_code == 404
    assert head.send("GET", "projects").json()["items"] == []
    assert head.send("GET", f"jobs/{job.id}/checkpoints").json()["items"] == []
    assert head.send("GET", f"jobs/{job.id}").json()["project"] == f"vision.deleted-{deletion['id']}"

    assert head.send("POST", f"deletions/{deletion['id']}:restore").json()["state"] == "restored"
    assert head.send("GET", f"projects/{row.id}").json()["job_count"] == 1
    assert len(head.send("GET", f"jobs/{job.id}/checkpoints").json()["items"]) == 1
    actions = AuditEvent.objects.filter(target_id=row.id).order_by("seq").values_list("action", flat=True)
    assert list(actions) == ["project.delete", "project.restore"]


def test_its_name_is_free_and_its_storage_returns(head: Api, job: Job, team: Team) -> None:
    keys.data_key(job.id, team)
    deletion = head.send("DELETE", f"projects/{project().id}").json()
    again = head.send("POST", "projects", {"name": "vision"})
    assert (again.status_code, again.json()["job_count"]) == (201, 0)
    taken = head.send("POST", f"deletions/{deletion['id']}:restore")
    assert (taken.status_code, taken.json()["code"]) == (409, "project_exists")
    Deletion.objects.update(purge_after=timezone.now())
    assert deletions.purge_due() == 1
    left = [item.key for item in storage.page(f"jobs/{job.id}/").items]
    assert not [key for key in left if "/checkpoints/" in key]
    assert not DataKey.objects.filter(owner=job.id).exists(), "nothing is left that it decrypts"
    assert Project.objects.filter(team=team).count() == 1
    assert head.send("GET", f"jobs/{job.id}").json()["status"] == "failed"


def test_one_with_unfinished_jobs_the_default_and_members_are_refused(
    head: Api, api: Api, submit: Callable[..., Job]
) -> None:
    waiting = submit(project="vision")
    row = project()
    refused = head.send("DELETE", f"projects/{row.id}")
    assert (refused.status_code, refused.json()["code"]) == (409, "still_needed")
    assert waiting.id in refused.json()["detail"]
    assert api.send("DELETE", f"projects/{row.id}").status_code == 403
    head.send("POST", f"jobs/{waiting.id}:cancel")
    drive.dispatch()
    Job.objects.filter(pk=waiting.pk).update(status=JobStatus.CANCELLED)
    assert head.send("DELETE", f"projects/{row.id}").status_code == 200
    assert api.send("POST", "jobs", {**SPEC, "project": "vision"}).status_code == 201, "a new project of the name"
    submit()
    refused = head.send("DELETE", f"projects/{Project.objects.get(name='default').id}")
    assert (refused.status_code, refused.json()["code"]) == (409, "default_project")


def test_a_data_key_stays_while_something_of_its_job_can_be_restored(head: Api, job: Job, team: Team) -> None:
    checkpoint = head.send("GET", f"jobs/{job.id}/checkpoints").json()["items"][0]
    second = registered_again(job)
    head.send("DELETE", f"checkpoints/{checkpoint['id']}?permanently=true")
    assert deletions.purge_due() == 1
    assert DataKey.objects.filter(owner=job.id).exists()
    assert head.send("POST", f"checkpoints/{second}:download").status_code == 200
    head.send("DELETE", f"checkpoints/{second}?permanently=true")
    assert deletions.purge_due() == 1
    artifacts = head.send("GET", f"jobs/{job.id}/artifacts").json()["items"]
    assert DataKey.objects.filter(owner=job.id).exists() == bool(artifacts)


def registered_again(job: Job) -> str:
    return str(registered(drive.attempt_of(job), 20).id)


@pytest.mark.django_db(transaction=True)
def test_a_deletion_waits_for_a_submission_under_way(submit: Callable[..., Job], user: User) -> None:
    Job.objects.filter(pk=submit(project="vision").pk).update(status=JobStatus.FAILED)
    is_submitted, may_commit = threading.Event(), threading.Event()

    def submit_slowly() -> None:
        with transaction.atomic():
            submit(project="vision")
            is_submitted.set()
            may_commit.wait(20)

    with ThreadPoolExecutor(2) as pool:
        submission = pool.submit(in_thread, submit_slowly)
        assert is_submitted.wait(20)
        deletion = pool.submit(in_thread, lambda: deletions.delete(project(), user))
        wait_until(lambda: is_blocked() or deletion.done(), "the deletion waits", 20)
        assert not deletion.done()
        may_commit.set()
        submission.result(20)
        with pytest.raises(Conflict, match="is needed by"):
            deletion.result(20)
    assert Job.objects.filter(project="vision").count() == 2


def in_thread(work: Callable[[], Any]) -> Any:
    try:
        return work()
    finally:
        connection.close()


def is_blocked() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        return bool(cursor.fetchone()[0])
