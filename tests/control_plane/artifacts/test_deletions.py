"""Deleting finished jobs, artifacts, checkpoints and data sets: previewed, undone, purged, audited, counted."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
from django.utils import timezone

from athanor.accounts import audit
from athanor.accounts.models import AuditEvent, Role, Team
from athanor.artifacts import deletions, services, storage, usage
from athanor.artifacts.models import Artifact, Checkpoint, Dataset, Deletion, PreparedDataset
from athanor.dispatch import tokens
from athanor.dispatch.services import run_config_of
from athanor.jobs.models import Job
from athanor.jobs.states import JobStatus
from tests.control_plane import drive
from tests.control_plane.api.test_agent import AgentClient
from tests.control_plane.artifacts.test_base_models import going_on
from tests.control_plane.artifacts.test_data_of_jobs import manifest_of as prepared_manifest
from tests.control_plane.artifacts.test_data_of_jobs import prepare_spec, submitted, upload
from tests.control_plane.artifacts.test_manifests import registered, rewrite
from tests.control_plane.conftest import SPEC
from trainer.contract.manifest import ModelManifest, StoredFile
from trainer.contract.run import EndClass

pytestmark = pytest.mark.django_db


@pytest.fixture
def finished(submit: Callable[..., Job], world: Any, bucket: str) -> Job:
    """A job that has ended, with a model and a checkpoint in the store."""
    job = submit()
    attempt = drive.start(job)
    registered(attempt, 10)
    encryptor = services.manifests.encryptor_of(attempt.job)
    ciphertext, part = encryptor.encrypt(b"weights", f"jobs/{job.id}/model/model.safetensors")
    storage.put(part.key, ciphertext)
    manifest = ModelManifest(
        job_id=job.id, attempt_id=attempt.id, step=10, num_parameters=1, created_at=timezone.now(),
        files=[StoredFile(path="model.safetensors", parts=[part])],
    )  # fmt: skip
    services.register_model(attempt, manifest)
    drive.report(attempt, EndClass.COMPLETED)
    world.finish(attempt.backend_name, 0)
    drive.settle()
    job.refresh_from_db()
    assert job.status == JobStatus.SUCCEEDED
    return job


def objects_of(job: Job) -> list[str]:
    return [
        item.key for item in storage.listing(f"s3://{storage.bucket()}/jobs/{job.id}/") if "/attempts/" not in item.key
    ]


def used(team: Team) -> int:
    return usage.stored_bytes([team.id]).get(team.id, 0)


def window_over() -> None:
    Deletion.objects.update(purge_after=timezone.now())


def test_a_deleted_artifact_is_hidden_restored_and_purged(api: Any, finished: Job, team: Team) -> None:
    artifact = Artifact.objects.get(kind="model")
    preview = api.send("GET", f"artifacts/{artifact.id}/deletion").json()
    assert (preview["kind"], preview["size_bytes"], preview["artifacts"]) == ("artifact", artifact.size_bytes, 1)
    assert (preview["blocked_by"], preview["undo_days"]) == ([], 7)
    before, stored = used(team), objects_of(finished)

    deletion = api.send("DELETE", f"artifacts/{artifact.id}").json()
    assert (deletion["state"], deletion["deleted_by"], deletion["target"]) == ("pending", "ada", artifact.id)
    assert api.send("GET", f"artifacts/{artifact.id}").status_code == 404
    assert api.send("POST", f"artifacts/{artifact.id}:download").status_code == 404
    assert api.send("GET", f"jobs/{finished.id}/artifacts").json()["items"] == []
    assert deletions.purge_due() == 0, "its window has just begun"
    assert (used(team), objects_of(finished)) == (before, stored), "what can be restored is still stored, and counted"

    assert api.send("POST", f"deletions/{deletion['id']}:restore").json()["state"] == "restored"
    assert api.send("POST", f"artifacts/{artifact.id}:download").status_code == 200
    again = api.send("POST", f"deletions/{deletion['id']}:restore")
    assert (again.status_code, again.json()["code"]) == (409, "deletion_over")

    deletion = api.send("DELETE", f"artifacts/{artifact.id}").json()
    window_over()
    assert (deletions.purge_due(), deletions.purge_due()) == (1, 0)
    assert storage.size_of(f"jobs/{finished.id}/model/model.safetensors") is None
    assert used(team) == before - artifact.size_bytes
    assert len(objects_of(finished)) == len(stored) - 1
    assert api.send("POST", f"deletions/{deletion['id']}:restore").status_code == 409
    states = [row["state"] for row in api.send("GET", "deletions").json()["items"]]
    assert states == ["purged", "restored"]
    actions = AuditEvent.objects.filter(target_id=artifact.id).exclude(action="artifact.download")
    assert list(actions.order_by("seq").values_list("action", "actor")) == [
        ("artifact.delete", "ada"), ("artifact.restore", "ada"), ("artifact.delete", "ada"),
        ("artifact.purged", "storage"),
    ]  # fmt: skip
    assert list(audit.verify()) == []


def test_deleting_a_job_removes_all_that_it_stored_and_keeps_its_record(api: Any, finished: Job, team: Team) -> None:
    preview = api.send("GET", f"jobs/{finished.id}/deletion").json()
    assert (preview["artifacts"], preview["checkpoints"], preview["size_bytes"]) == (1, 1, used(team))
    assert api.send("DELETE", f"jobs/{finished.id}").json()["kind"] == "job"
    assert run_config_of(drive.attempt_of(finished)).resume is None
    assert api.send("GET", f"jobs/{finished.id}/checkpoints").json()["items"] == []
    window_over()
    assert deletions.purge_due() == 1
    assert (objects_of(finished), used(team)) == ([], 0)
    assert api.send("GET", f"jobs/{finished.id}").json()["status"] == "succeeded"


def test_a_checkpoint_is_deleted_with_its_manifest(api: Any, finished: Job) -> None:
    row = Checkpoint.objects.get()
    key = row.manifest["files"][0]["parts"][0]["key"].rpartition("/")[0] + "/manifest.json"
    storage.put(key, b"sealed")
    assert api.send("DELETE", f"checkpoints/{row.id}").status_code == 200
    window_over()
    assert deletions.purge_due() == 1
    assert storage.size_of(key) is None
    row.refresh_from_db()
    assert row.deleted_at is not None
    assert services.sweep_retired() == 0


def test_what_an_unfinished_job_needs_is_not_deleted(api: Any, finished: Job) -> None:
    artifact = Artifact.objects.get(kind="model")
    Artifact.objects.filter(pk=artifact.pk).update(name="first")
    spec = copy.deepcopy(SPEC)
    user = Job.objects.get(pk=api.send("POST", "jobs", spec).json()["id"])
    resolved = {**user.resolved_spec, "training": going_on(f"model:{artifact.id}")["training"]}
    Job.objects.filter(pk=user.pk).update(resolved_spec=resolved)
    for address in (f"artifacts/{artifact.id}", f"jobs/{finished.id}", f"jobs/{user.id}"):
        answer = api.send("DELETE", address)
        assert (answer.status_code, answer.json()["code"]) == (409, "still_needed"), address
        assert user.id in answer.json()["detail"]
    assert [job["id"] for job in api.send("GET", f"artifacts/{artifact.id}/deletion").json()["blocked_by"]] == [user.id]
    assert not Deletion.objects.exists()
    api.send("POST", f"jobs/{user.id}:cancel")
    drive.settle()
    Job.objects.filter(pk=user.pk).update(status=JobStatus.CANCELLED)
    assert [job["id"] for job in api.send("GET", f"artifacts/{artifact.id}/deletion").json()["used_by"]] == [user.id]
    assert api.send("DELETE", f"artifacts/{artifact.id}").status_code == 200


def test_a_data_set_goes_with_its_preparations_and_frees_its_name(
    api: Any, world: Any, bucket: str, team: Team
) -> None:
    identifier = upload(api, b"text", name="one").json()["id"]
    job = submitted(api, prepare_spec("dataset:one"))
    attempt = drive.start(job)
    recipe = "0" * 64
    body = prepared_manifest(attempt, identifier, recipe)
    assert AgentClient(tokens.issue(attempt.id))("POST", "datasets", body).status_code == 201
    assert api.send("DELETE", f"datasets/{identifier}").json()["code"] == "still_needed"
    Job.objects.filter(pk=job.pk).update(status=JobStatus.SUCCEEDED)
    preview = api.send("GET", f"datasets/{identifier}/deletion").json()
    assert (preview["preparations"], [used["id"] for used in preview["used_by"]]) == (1, [job.id])

    deletion = api.send("DELETE", f"datasets/{identifier}").json()
    assert api.send("GET", "datasets").json()["items"] == []
    refused = api.send("POST", "jobs", prepare_spec("dataset:one"))
    assert refused.status_code == 422
    other = upload(api, b"other", name="one").json()["id"]
    api.send("DELETE", f"datasets/{other}")
    assert api.send("POST", f"deletions/{deletion['id']}:restore").status_code == 200
    assert [row["name"] for row in api.send("GET", "datasets").json()["items"]] == ["one"]

    api.send("DELETE", f"datasets/{identifier}")
    window_over()
    assert deletions.purge_due() == 2
    assert used(team) == 0
    assert not PreparedDataset.objects.exists()
    part = Dataset.objects.get(pk=identifier).files[0]["parts"][0]
    assert storage.size_of(part["key"]) is None


def test_only_an_administrator_shortens_the_window_and_strangers_see_nothing(
    api: Any, api_of: Any, make_user: Any, finished: Job, team: Team, other_team: Team
) -> None:
    artifact = Artifact.objects.get(kind="model")
    viewer = api_of(make_user("vera", team, Role.VIEWER), team)
    stranger = api_of(make_user("sam", other_team), other_team)
    head = api_of(make_user("hal", team, Role.ADMIN), team)
    assert viewer.send("DELETE", f"artifacts/{artifact.id}").status_code == 403
    assert stranger.send("DELETE", f"artifacts/{artifact.id}").status_code == 404
    assert api.send("DELETE", f"artifacts/{artifact.id}?permanently=true").status_code == 403
    assert api.send("DELETE", f"artifacts/{artifact.id}?permanently=now").status_code == 422
    deletion = api.send("DELETE", f"artifacts/{artifact.id}").json()
    assert stranger.send("POST", f"deletions/{deletion['id']}:restore").status_code == 404
    assert stranger.send("GET", "deletions").json()["items"] == []
    assert api.send("POST", f"deletions/{deletion['id']}:purge").status_code == 403
    assert head.send("POST", f"deletions/{deletion['id']}:purge").status_code == 200
    assert deletions.purge_due() == 1


def test_a_forged_manifest_deletes_nothing_of_others(api: Any, finished: Job, submit: Callable[..., Job]) -> None:
    row = Checkpoint.objects.get()
    victim = registered(drive.start(submit(name="victim")), 10)
    api.send("DELETE", f"checkpoints/{row.id}")
    rewrite("artifacts_checkpoint", row.id, victim.manifest)
    window_over()
    assert deletions.purge_due() == 0
    assert all(storage.size_of(part["key"]) for file in victim.manifest["files"] for part in file["parts"])


def test_what_is_not_stored_here_is_not_deleted_here(api: Any, submit: Callable[..., Job]) -> None:
    row = Dataset.objects.get(pk=submit().dataset_id)
    answer = api.send("DELETE", f"datasets/{row.id}")
    assert (answer.status_code, answer.json()["code"]) == (422, "not_stored_here")
