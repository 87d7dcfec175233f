"""Manifests are authenticated: without keys, changed rows cannot alter which files are read."""

import copy
import io
import json
import tarfile
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from athanor.artifacts import keys, services, storage
from athanor.artifacts.models import Artifact, Checkpoint, Dataset, PreparedDataset
from athanor.core.errors import Conflict
from athanor.dispatch import tokens
from athanor.dispatch.services import run_config_of
from athanor.jobs.models import Attempt, Job
from tests.control_plane import drive
from tests.control_plane.api.test_agent import AgentClient, manifest_of, stored_part
from tests.control_plane.artifacts.test_base_models import finished_model
from tests.control_plane.artifacts.test_data_of_jobs import manifest_of as prepared_of
from tests.control_plane.artifacts.test_data_of_jobs import prepare_spec, submitted, upload
from trainer.contract.encryption import Encryptor, authenticate, check_manifest, new_keyset
from trainer.contract.manifest import CheckpointManifest, ModelManifest, StoredFile

pytestmark = pytest.mark.django_db
Change = Callable[[dict[str, Any]], None]


@pytest.fixture
def attempt(submit: Callable[..., Job], bucket: str) -> Attempt:
    return drive.start(submit())


def swap_files(manifest: dict[str, Any]) -> None:
    first, second, *_ = manifest["files"]
    first["parts"], second["parts"] = second["parts"], first["parts"]


def swap_paths(manifest: dict[str, Any]) -> None:
    first, second, *_ = manifest["files"]
    first["path"], second["path"] = second["path"], first["path"]


def reorder(manifest: dict[str, Any]) -> None:
    manifest["files"].reverse()


def drop_file(manifest: dict[str, Any]) -> None:
    del manifest["files"][1]


def drop_parts(manifest: dict[str, Any]) -> None:
    manifest["files"][0]["parts"] = []


def change_metrics(manifest: dict[str, Any]) -> None:
    manifest["metrics"] = {"validation/loss": 0.001}


def without_tag(manifest: dict[str, Any]) -> None:
    del manifest["tag"]


def climb_out(manifest: dict[str, Any]) -> None:
    manifest["files"][0]["path"] = "../../evil"


def forget_files(manifest: dict[str, Any]) -> None:
    del manifest["files"]


FORGERIES = [
    climb_out,
    forget_files,
    swap_files,
    swap_paths,
    reorder,
    drop_file,
    drop_parts,
    change_metrics,
    without_tag,
]


def rewrite(table: str, row_id: str, manifest: dict[str, Any]) -> None:
    """Act as the database role of web and workers, which may update these rows."""
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {table} SET manifest = %s WHERE id = %s", [json.dumps(manifest), row_id])


@pytest.mark.parametrize("forge", FORGERIES)
def test_a_forged_model_is_neither_downloaded_nor_archived(
    api: Any, submit: Callable[..., Job], bucket: str, forge: Change
) -> None:
    row, _ = finished_model(submit)
    forgery = copy.deepcopy(row.manifest)
    forge(forgery)
    rewrite("artifacts_artifact", row.id, forgery)
    for answer in (api.send("POST", f"artifacts/{row.id}:download"), api.send("GET", f"artifacts/{row.id}/archive")):
        assert (answer.status_code, answer.json()["code"]) == (409, "manifest_not_authentic"), answer.content
        assert "data_key" not in answer.json()
    (shown,) = api.send("GET", f"jobs/{row.job_id}/artifacts").json()["items"]
    assert (shown["id"], shown["authentic"], shown["files"]) == (row.id, False, [])
    rewrite("artifacts_artifact", row.id, row.manifest)
    shown = api.send("GET", f"artifacts/{row.id}").json()
    assert (shown["authentic"], len(shown["files"])) == (True, len(row.manifest["files"]))


def test_the_manifest_of_another_job_is_refused(api: Any, submit: Callable[..., Job], bucket: str) -> None:
    mine, _ = finished_model(submit)
    other, _ = finished_model(submit)
    rewrite("artifacts_artifact", mine.id, other.manifest)
    assert api.send("POST", f"artifacts/{mine.id}:download").json()["code"] == "manifest_not_authentic"
    assert api.send("POST", f"artifacts/{other.id}:download").status_code == 200


def test_a_base_model_whose_manifest_is_forged_is_refused(submit: Callable[..., Job], bucket: str) -> None:
    row, _ = finished_model(submit)
    forgery = copy.deepcopy(row.manifest)
    swap_files(forgery)
    rewrite("artifacts_artifact", row.id, forgery)
    with pytest.raises(Conflict, match="not the one that was registered"):
        list(services.opened_parts(Artifact.objects.get(pk=row.id), "config.json"))


def test_a_download_has_the_manifest_with_its_tag_and_an_archive_its_files(
    api: Any, submit: Callable[..., Job], bucket: str
) -> None:
    row, job = finished_model(submit)
    answer = api.send("POST", f"artifacts/{row.id}:download").json()
    manifest = ModelManifest.model_validate(answer["manifest"])
    check_manifest(manifest, Encryptor(answer["data_key"]), job_id=job.id, step=row.step)
    content = b"".join(api.get(f"/api/v1/artifacts/{row.id}/archive").streaming_content)
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        assert [name.rpartition("/")[2] for name in tar.getnames()] == [
            *(file.path for file in manifest.files),
            "model.sig",
        ]


def registered(attempt: Attempt, step: int) -> Checkpoint:
    parts = [stored_part(attempt, f"checkpoints/{step}/{name}", name.encode()) for name in ("rank0", "layout")]
    files = [StoredFile(path=name, parts=[part]) for name, part in zip(("rank0", "layout"), parts, strict=True)]
    manifest = manifest_of(attempt, step, []).model_copy(update={"files": files})
    return services.register_checkpoint(attempt, manifest)


def test_a_checkpoint_with_a_forged_manifest_is_listed_as_such(api: Any, attempt: Attempt) -> None:
    row = registered(attempt, 10)
    rewrite("artifacts_checkpoint", row.id, {"world_size": 512})
    (shown,) = api.send("GET", f"jobs/{row.job_id}/checkpoints").json()["items"]
    assert (shown["authentic"], shown["files"], shown["world_size"]) == (False, [], None)


@pytest.mark.parametrize("forge", [swap_files, drop_file, without_tag])
def test_a_run_is_not_resumed_from_a_forged_checkpoint(attempt: Attempt, forge: Change) -> None:
    row = registered(attempt, 10)
    assert run_config_of(attempt).resume.step == 10
    forgery = copy.deepcopy(row.manifest)
    forge(forgery)
    rewrite("artifacts_checkpoint", row.id, forgery)
    answer = AgentClient(tokens.issue(attempt.id))("GET", "run")
    assert (answer.status_code, answer.json()["code"]) == (409, "manifest_not_authentic")


def test_an_older_manifest_of_the_same_job_in_place_of_the_newest_is_refused(api: Any, attempt: Attempt) -> None:
    old, newest = registered(attempt, 10), registered(attempt, 20)
    rewrite("artifacts_checkpoint", newest.id, old.manifest)
    with pytest.raises(Conflict, match="another step: 10, not 20"):
        run_config_of(attempt)
    assert api.send("POST", f"checkpoints/{newest.id}:download").json()["code"] == "manifest_not_authentic"


def test_a_retired_checkpoint_with_a_forged_manifest_deletes_nothing(attempt: Attempt) -> None:
    rows = [registered(attempt, step) for step in (10, 20, 30)]
    victim = rows[2].manifest
    assert Checkpoint.objects.get(pk=rows[0].pk).retired_at is not None
    rewrite("artifacts_checkpoint", rows[0].pk, victim)
    assert services.sweep_retired() == 0
    assert all(storage.size_of(part["key"]) for file in victim["files"] for part in file["parts"])
    rewrite("artifacts_checkpoint", rows[0].pk, rows[0].manifest)
    assert services.sweep_retired() == 1


def test_a_manifest_is_registered_only_by_its_attempt_and_with_a_right_tag(
    attempt: Attempt, submit: Callable[..., Job]
) -> None:
    agent = AgentClient(tokens.issue(attempt.id))
    manifest = manifest_of(attempt, 10, [stored_part(attempt, "checkpoints/10/rank0")])
    wrong_key = authenticate(manifest, Encryptor(new_keyset()))
    other = manifest.model_copy(update={"attempt_id": "att_other"})
    for refused, code in ((wrong_key, "manifest_not_authentic"), (other, "manifest_of_another")):
        answer = agent("POST", "checkpoints", refused.model_dump(mode="json"))
        assert (answer.status_code, answer.json()["code"]) == (422, code)
    assert not Checkpoint.objects.exists()
    own = authenticate(manifest, keys.encryptor(attempt.job_id, attempt.job.team))
    assert agent("POST", "checkpoints", own.model_dump(mode="json")).status_code == 201
    assert Checkpoint.objects.get().manifest["tag"] == own.tag


def test_what_a_database_does_to_numbers_does_not_change_a_tag(attempt: Attempt) -> None:
    encryptor = keys.encryptor(attempt.job_id, attempt.job.team)
    metrics = {"a": -0.0, "b": 1e22, "c": 1e-300, "d": 1.0, "e": 0.1}
    parts = [stored_part(attempt, "checkpoints/10/rank0")]
    manifest = manifest_of(attempt, 10, parts).model_copy(update={"metrics": metrics})
    row = services.register_checkpoint(attempt, authenticate(manifest, encryptor))
    row.refresh_from_db()
    check_manifest(CheckpointManifest.model_validate(row.manifest), encryptor)


def test_an_upload_whose_files_were_changed_is_not_given_to_a_job(api: Any, world: Any, bucket: str) -> None:
    upload(api, b"text", name="one")
    attempt = drive.start(submitted(api, prepare_spec("dataset:one")))
    row = Dataset.objects.get(name="one")
    assert run_config_of(attempt).dataset.raw[0].path == row.files[0]["path"]
    Dataset.objects.filter(pk=row.pk).update(files=[*row.files, {**row.files[0], "path": "twice"}])
    with pytest.raises(Conflict, match="was changed"):
        run_config_of(attempt)


def test_prepared_data_of_another_recipe_is_refused(api: Any, spec: dict, world: Any, bucket: str) -> None:
    upload(api, b"text", name="one")
    attempt = drive.start(submitted(api, prepare_spec("dataset:one")))
    run = run_config_of(attempt)
    agent = AgentClient(tokens.issue(attempt.id))
    assert agent("POST", "datasets", prepared_of(attempt, run.dataset.dataset_id, "0" * 64)).status_code == 201
    row = PreparedDataset.objects.get()
    forgery = copy.deepcopy(row.manifest)
    forgery["files"][0]["path"] = "y"
    rewrite("artifacts_prepareddataset", row.pk, forgery)
    with pytest.raises(Conflict, match="was changed"):
        services.manifests.of_preparation(PreparedDataset.objects.get())
