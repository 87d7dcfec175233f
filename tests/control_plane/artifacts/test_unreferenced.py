"""Objects under a job's prefix that no manifest names are counted as storage, then deleted."""

import urllib.request
from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from athanor.accounts.models import AuditEvent, Team
from athanor.artifacts import storage, unreferenced, usage
from athanor.artifacts.models import Checkpoint, JobStorage
from athanor.backends.fake.backend import World
from athanor.core.errors import Conflict
from athanor.dispatch import tokens
from athanor.jobs.models import Attempt, Job
from athanor.quotas.models import QuotaNode
from athanor.quotas.selectors import path_of_team
from tests.control_plane import drive
from tests.control_plane.api.test_agent import AgentClient, stored_part
from tests.control_plane.artifacts.test_manifests import registered, rewrite
from trainer.contract.run import EndClass

pytestmark = pytest.mark.django_db
JUNK = b"x" * 20_000
DAY = timedelta(hours=26)


@pytest.fixture
def attempt(submit: Callable[..., Job], world: World, bucket: str) -> Attempt:
    return drive.start(submit())


def put(attempt: Attempt, name: str, content: bytes = JUNK) -> str:
    """Store an object as a compromised node can, by the URL that its token gets."""
    key = f"jobs/{attempt.job_id}/{name}"
    asked = {"operation": "put", "keys": [key]}
    answer = AgentClient(tokens.issue(attempt.id))("POST", "storage:presign", asked)
    assert answer.status_code == 200, answer.content
    url = answer.json()["urls"][0]["url"]
    with urllib.request.urlopen(urllib.request.Request(url, data=content, method="PUT")) as done:
        assert done.status == 200
    return key


def end(world: World, attempt: Attempt) -> None:
    drive.report(attempt, EndClass.BAD_SPEC)
    world.finish(attempt.backend_name, 1)
    drive.settle()


def scan_now() -> None:
    JobStorage.objects.update(next_scan_at=timezone.now() - timedelta(seconds=1))


def used(team: Team) -> int:
    return usage.stored_bytes([team.id]).get(team.id, 0)


def keys(job_id: str) -> set[str]:
    return {item.key for item in storage.page(f"jobs/{job_id}/").items}


def test_what_a_node_stores_on_the_quiet_counts_while_it_runs(api: Any, attempt: Attempt, team: Team) -> None:
    before = used(team)
    key = put(attempt, "deep/junk.bin")
    assert unreferenced.sweep() == 0, "the live attempt may be about to name it"
    assert used(team) == before + len(JUNK)
    shown = {node["id"]: node for node in api.send("GET", "quotas/usage").json()["nodes"]}
    assert shown[path_of_team(team)[-1].id]["unreferenced_bytes"] == len(JUNK)
    QuotaNode.objects.filter(pk=path_of_team(team)[-1].pk).update(max_storage_bytes=len(JUNK))
    with pytest.raises(Conflict) as refused:
        usage.check(path_of_team(team))
    assert refused.value.code == "storage_full"
    scan_now()
    assert unreferenced.sweep(timezone.now() + 30 * DAY) == 0, "not while the attempt lives, however long"
    assert storage.size_of(key) == len(JUNK)


def test_it_is_deleted_after_the_attempt_and_what_manifests_name_stays(
    api: Any, attempt: Attempt, world: World, team: Team
) -> None:
    checkpoint = registered(attempt, 10)
    beside = put(attempt, "checkpoints/10/manifest.json", b"sealed")
    junk = {put(attempt, f"junk-{number}") for number in range(3)}
    end(world, attempt)
    kept = keys(attempt.job_id) - junk
    assert beside in kept
    unreferenced.sweep()
    assert used(team) >= checkpoint.size_bytes + 3 * len(JUNK)
    scan_now()
    assert unreferenced.sweep(timezone.now() + timedelta(hours=1)) == 0, "they are younger than the limit"
    scan_now()
    assert unreferenced.sweep(timezone.now() + DAY) == 3
    assert keys(attempt.job_id) == kept
    row = JobStorage.objects.get()
    assert (row.removed_objects, row.removed_bytes, row.unreferenced_bytes) == (3, 3 * len(JUNK), 0)
    assert row.next_scan_at is None, "nothing can be written there any more"
    event = AuditEvent.objects.get(action="storage.unreferenced")
    assert (event.target_id, event.after) == (attempt.job_id, {"objects": 3, "size_bytes": 3 * len(JUNK)})
    assert api.send("POST", f"checkpoints/{checkpoint.id}:download").status_code == 200


def test_an_object_larger_than_its_manifest_says_counts(attempt: Attempt, team: Team) -> None:
    checkpoint = registered(attempt, 10)
    part = checkpoint.manifest["files"][0]["parts"][0]
    put(attempt, part["key"].removeprefix(f"jobs/{attempt.job_id}/"), JUNK)
    unreferenced.sweep()
    assert used(team) == checkpoint.size_bytes + len(JUNK) - part["size"]


def test_a_save_in_flight_of_the_next_attempt_is_not_touched(attempt: Attempt, world: World) -> None:
    """Register a checkpoint long after its parts were written."""
    end(world, attempt)
    job = Job.objects.get(pk=attempt.job_id)
    Job.objects.filter(pk=job.pk).update(status="queued", desired="run", act_after=None)
    second = drive.start(job)
    assert second.number == 2
    part = stored_part(second, "checkpoints/20/rank0")
    scan_now()
    unreferenced.sweep(timezone.now() + 5 * DAY)
    assert storage.size_of(part.key) == part.size


def test_a_large_prefix_is_looked_at_page_by_page_over_several_sweeps(
    attempt: Attempt, world: World, team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = storage.page
    monkeypatch.setattr(storage, "page", lambda prefix, after="": real(prefix, after, limit=2))
    names = {put(attempt, f"junk-{number}", b"12345") for number in range(7)}
    end(world, attempt)
    later = timezone.now() + DAY
    assert unreferenced.sweep(later, max_pages=1) == 2
    JobStorage.objects.update(next_scan_at=later)  # as when the worker was killed and its lease ran out
    removed = 2
    for _ in range(8):
        removed += unreferenced.sweep(later, max_pages=1)
        JobStorage.objects.exclude(next_scan_at=None).update(next_scan_at=later)
    assert removed == len(names)
    assert not names & keys(attempt.job_id)
    assert JobStorage.objects.get().removed_objects == len(names)


def test_nothing_is_deleted_where_a_manifest_is_not_authentic(attempt: Attempt, world: World) -> None:
    checkpoint = registered(attempt, 10)
    put(attempt, "junk")
    end(world, attempt)
    before = keys(attempt.job_id)
    rewrite("artifacts_checkpoint", checkpoint.id, {**checkpoint.manifest, "files": []})
    assert unreferenced.sweep(timezone.now() + DAY) == 0
    assert keys(attempt.job_id) == before
    rewrite("artifacts_checkpoint", checkpoint.id, Checkpoint.objects.get().manifest | checkpoint.manifest)
    scan_now()
    assert unreferenced.sweep(timezone.now() + DAY) == 1


def test_stale_multipart_uploads_are_aborted(attempt: Attempt, world: World) -> None:
    begun = storage.client().create_multipart_upload(Bucket=storage.bucket(), Key=f"jobs/{attempt.job_id}/parts")
    where = {"Bucket": storage.bucket(), "Key": begun["Key"], "UploadId": begun["UploadId"]}
    storage.client().upload_part(**where, PartNumber=1, Body=JUNK)
    end(world, attempt)
    unreferenced.sweep()
    listed = storage.client().list_multipart_uploads(Bucket=storage.bucket(), Prefix=f"jobs/{attempt.job_id}/")
    assert len(listed["Uploads"]) == 1, "it is young"
    scan_now()
    unreferenced.sweep(timezone.now() + DAY)
    listed = storage.client().list_multipart_uploads(Bucket=storage.bucket(), Prefix=f"jobs/{attempt.job_id}/")
    assert not listed.get("Uploads")


def test_jobs_that_ended_before_the_upgrade_are_looked_at_once(attempt: Attempt, world: World) -> None:
    key = put(attempt, "junk")
    end(world, attempt)
    JobStorage.objects.all().delete()
    migration = import_module("athanor.artifacts.migrations.0013_storage_of_earlier_jobs")
    with connection.cursor() as cursor:
        cursor.execute(migration.EARLIER_JOBS)
    assert unreferenced.sweep(timezone.now() + DAY) == 1
    assert storage.size_of(key) is None
    assert JobStorage.objects.get().next_scan_at is None
