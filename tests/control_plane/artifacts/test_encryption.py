"""Objects in the bucket are encrypted, and damaged ones are refused."""

import io
import tarfile
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import SystemCheckError

from athanor.accounts.models import Team
from athanor.artifacts import keys, storage
from athanor.artifacts.models import Artifact, DataKey, TeamKey
from athanor.core import encryption
from athanor.core.errors import AthanorError
from athanor.jobs.models import Attempt, Job
from athanor.telemetry import ingest
from tests.control_plane import drive
from trainer.contract.encryption import DecryptionError, Encryptor, authenticate
from trainer.contract.manifest import ModelManifest, StoredFile
from trainer.contract.run import Batch, EndClass, LogLine

pytestmark = pytest.mark.django_db
SECRET = b"PLANTED-CANARY in the model " * 1000


@pytest.fixture
def artifact(submit: Callable[..., Job], bucket: str) -> Artifact:
    attempt = drive.start(submit())
    encryptor = keys.encryptor(attempt.job_id, attempt.job.team)
    parts = []
    for number in range(2):
        ciphertext, part = encryptor.encrypt(SECRET + bytes([number]), f"jobs/{attempt.job_id}/model/part-{number}")
        storage.put(part.key, ciphertext)
        parts.append(part)
    manifest = ModelManifest(
        job_id=attempt.job_id, attempt_id=attempt.id, step=1, num_parameters=1, created_at=datetime.now(UTC),
        files=[StoredFile(path="model.safetensors", parts=parts)],
    )  # fmt: skip
    manifest = authenticate(manifest, encryptor).model_dump(mode="json")
    return Artifact.objects.create(
        job=attempt.job, attempt=attempt, kind="model", name="m", step=1, size_bytes=1, manifest=manifest
    )


def parts_of(artifact: Artifact) -> list[dict[str, Any]]:
    return artifact.manifest["files"][0]["parts"]


def test_no_raw_object_shows_its_content(artifact: Artifact) -> None:
    for part in parts_of(artifact):
        raw = storage.get(part["key"])
        assert raw is not None
        assert b"PLANTED-CANARY" not in raw


def test_an_archive_is_opened_as_it_streams(api: Any, artifact: Artifact) -> None:
    answer = api.send("GET", f"artifacts/{artifact.id}/archive")
    content = b"".join(answer.streaming_content)
    assert len(content) == int(answer["Content-Length"])
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        assert archive.getnames() == ["tiny/model.safetensors"]
        assert archive.extractfile("tiny/model.safetensors").read() == SECRET + b"\0" + SECRET + b"\1"


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize("damage", ["flipped", "truncated", "lengthened", "swapped"])
def test_a_damaged_object_is_refused_before_a_byte_is_used(api: Any, artifact: Artifact, damage: str) -> None:
    first, second = (storage.get(part["key"]) for part in parts_of(artifact))
    changed = {
        "flipped": flipped(first), "truncated": first[:-20], "lengthened": first + b"x", "swapped": second,
    }[damage]  # fmt: skip
    storage.put(parts_of(artifact)[0]["key"], changed)
    answer = api.send("GET", f"artifacts/{artifact.id}/archive")
    stream = iter(answer.streaming_content)
    next(stream)  # the tar header, which holds no content
    with pytest.raises(DecryptionError):
        next(stream)


def test_even_with_a_matching_manifest_a_swapped_part_does_not_open(artifact: Artifact) -> None:
    """Parts cannot be exchanged by a person who can write objects and rows but has no key."""
    encryptor = keys.encryptor(artifact.job_id, artifact.job.team)
    first, second = parts_of(artifact)
    ciphertext = storage.get(second["key"])
    forged = StoredFile.model_validate(artifact.manifest["files"][0]).parts[1].model_copy(update={"key": first["key"]})
    with pytest.raises(DecryptionError, match="cannot be decrypted"):
        encryptor.decrypt(ciphertext, forged)


def test_a_download_hands_out_urls_and_the_key_that_open_it(api: Any, artifact: Artifact) -> None:
    body = api.send("POST", f"artifacts/{artifact.id}:download").json()
    encryptor = Encryptor(body["data_key"])
    with urllib.request.urlopen(body["files"][0]["parts"][0]["url"]) as answer:
        plaintext = encryptor.decrypt_unlisted(answer.read(), body["files"][0]["parts"][0]["key"])
    assert plaintext == SECRET + b"\0"


def test_keys_are_wrapped_and_one_per_owner(artifact: Artifact, team: Team, other_team: Team) -> None:
    job_key = keys.data_key(artifact.job_id, team)
    assert job_key == keys.data_key(artifact.job_id, team)
    assert job_key != keys.data_key("job_other", team)
    row = DataKey.objects.get(owner=artifact.job_id)
    assert job_key.encode() not in bytes(row.wrapped)
    keys.data_key("job_of_the_other_team", other_team)
    assert TeamKey.objects.count() == 2


def test_a_wrapped_key_moved_to_another_owner_does_not_open(team: Team) -> None:
    keys.data_key("job_a", team)
    DataKey.objects.filter(owner="job_a").update(owner="job_b")
    with pytest.raises(AthanorError, match="job_b"):
        keys.data_key("job_b", team)


def test_with_another_master_key_nothing_opens(team: Team, settings: Any) -> None:
    keys.data_key("job_a", team)
    settings.ATHANOR = settings.ATHANOR.model_copy(update={"master_key": encryption.new_wrapping_keyset()})
    with pytest.raises(AthanorError, match="does not open") as caught:
        keys.data_key("job_a", team)
    assert "ATHANOR_MASTER_KEY" in caught.value.remedy


def test_a_wrong_master_key_is_found_by_the_check_that_migrate_runs(team: Team, settings: Any) -> None:
    call_command("check", databases=["default"])
    right = settings.ATHANOR.master_key
    wrong = settings.ATHANOR.model_copy(update={"master_key": encryption.new_wrapping_keyset()})
    settings.ATHANOR = wrong
    call_command("check", databases=["default"])  # nothing is encrypted yet
    settings.ATHANOR = wrong.model_copy(update={"master_key": right})
    keys.data_key("job_a", team)
    settings.ATHANOR = wrong
    with pytest.raises(SystemCheckError, match="ATHANOR_MASTER_KEY"):
        call_command("check", databases=["default"])
    settings.ATHANOR = wrong.model_copy(update={"previous_master_key": right})  # while it is being rotated
    call_command("check", databases=["default"])


def test_wrapping_is_authenticated() -> None:
    keyset = encryption.new_wrapping_keyset()
    wrapped = encryption.wrap(keyset, "secret", "owner")
    assert encryption.unwrap(keyset, wrapped, "owner") == "secret"
    with pytest.raises(AthanorError):
        encryption.unwrap(keyset, flipped(wrapped), "owner")


def test_the_log_in_the_bucket_is_unreadable_and_downloadable(
    submit: Callable[..., Job], world: Any, bucket: str, api: Any
) -> None:
    attempt: Attempt = drive.run(submit())
    line = LogLine(time=datetime.now(UTC), rank=0, stream="stdout", text="PLANTED-CANARY in the log")
    ingest.ingest(attempt, "logs", Batch(writer="rank0", sequence=0, lines=[line]))
    drive.end(world, attempt, EndClass.DATA_ERROR)
    log = Artifact.objects.get(job=attempt.job, kind="log")
    assert b"PLANTED" not in (storage.get(parts_of(log)[0]["key"]) or b"")
    assert len(b"".join(api.send("GET", f"artifacts/{log.id}/archive").streaming_content)) > 512
