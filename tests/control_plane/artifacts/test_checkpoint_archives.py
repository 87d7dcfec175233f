"""An archive of a checkpoint: decrypted as it streams, for those who may, and never silently short."""

import io
import tarfile
from collections.abc import Callable

import pytest

from athanor.accounts.models import AuditEvent, Team, User
from athanor.accounts.roles import Role, Scope
from athanor.accounts.services import issue_token
from athanor.api.limits import Lane, limits_of
from athanor.artifacts import keys, services, storage
from athanor.artifacts.models import Checkpoint
from athanor.core.errors import NotFound
from athanor.jobs.models import Attempt, Job
from tests.control_plane import drive
from tests.control_plane.api.test_agent import manifest_of, stored_part
from tests.control_plane.conftest import Api
from trainer.contract.encryption import DecryptionError, authenticate
from trainer.contract.manifest import CheckpointManifest, StoredFile

pytestmark = pytest.mark.django_db
CONTENT = {"rank0": b"weights of rank 0 " * 500, "layout": b"{}"}


@pytest.fixture
def attempt(submit: Callable[..., Job], bucket: str) -> Attempt:
    return drive.start(submit())


@pytest.fixture
def checkpoint(attempt: Attempt) -> Checkpoint:
    files = [
        StoredFile(path=name, parts=[stored_part(attempt, f"checkpoints/10/{name}", content)])
        for name, content in CONTENT.items()
    ]
    manifest = manifest_of(attempt, 10, []).model_copy(update={"files": files})
    return services.register_checkpoint(attempt, manifest)


def downloads() -> int:
    return AuditEvent.objects.filter(action="checkpoint.download").count()


def test_an_archive_has_the_decrypted_files_and_is_on_record(api: Api, checkpoint: Checkpoint) -> None:
    answer = api.send("GET", f"checkpoints/{checkpoint.id}/archive")
    content = b"".join(answer.streaming_content)
    assert len(content) == int(answer["Content-Length"])
    assert answer["Content-Disposition"] == f'attachment; filename="{checkpoint.job.name}-checkpoint-10.tar"'
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        found = {name.rpartition("/")[2]: archive.extractfile(name).read() for name in archive.getnames()}
    assert found == CONTENT
    event = AuditEvent.objects.get(action="checkpoint.download")
    assert (event.target_id, event.after) == (checkpoint.id, {"job": checkpoint.job_id, "step": 10})


def test_an_archive_is_streamed_like_other_transfers(checkpoint: Checkpoint) -> None:
    assert limits_of(f"/api/v1/checkpoints/{checkpoint.id}/archive").lane is Lane.TRANSFER


@pytest.mark.parametrize(
    ("damage", "error"), [("flipped", DecryptionError), ("truncated", DecryptionError), ("gone", NotFound)]
)
def test_a_damaged_part_breaks_the_archive_off(
    api: Api, checkpoint: Checkpoint, damage: str, error: type[Exception]
) -> None:
    key = checkpoint.manifest["files"][0]["parts"][0]["key"]
    content = storage.get(key)
    assert content is not None
    if damage == "gone":
        storage.delete([key])
    else:
        storage.put(key, content[:-1] if damage == "truncated" else content[:-1] + bytes([content[-1] ^ 1]))
    stream = iter(api.send("GET", f"checkpoints/{checkpoint.id}/archive").streaming_content)
    next(stream)  # the header of the first file
    with pytest.raises(error):
        next(stream)


def test_a_changed_manifest_is_refused(api: Api, checkpoint: Checkpoint) -> None:
    changed = {**checkpoint.manifest, "files": checkpoint.manifest["files"][:1]}
    Checkpoint.objects.filter(pk=checkpoint.pk).update(manifest=changed)
    answer = api.send("GET", f"checkpoints/{checkpoint.id}/archive")
    assert (answer.status_code, answer.json()["code"]) == (409, "manifest_not_authentic")


def test_a_member_of_another_team_finds_no_checkpoint(
    checkpoint: Checkpoint, other_team: Team, make_user: Callable[..., User], api_of: Callable[[User, Team], Api]
) -> None:
    stranger = api_of(make_user("eve", other_team, Role.ADMIN), other_team)
    answer = stranger.send("GET", f"checkpoints/{checkpoint.id}/archive")
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert downloads() == 0


@pytest.mark.parametrize(("scopes", "status"), [([Scope.READ], 403), ([Scope.READ, Scope.ARTIFACTS], 200)])
def test_a_token_needs_the_scope_artifacts(
    checkpoint: Checkpoint, user: User, team: Team, scopes: list[Scope], status: int
) -> None:
    client = Api()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {issue_token(user, team, 't', scopes=scopes)[1]}")
    assert client.send("GET", f"checkpoints/{checkpoint.id}/archive").status_code == status
    assert downloads() == (status == 200)


def test_nobody_reads_it_without_signing_in(checkpoint: Checkpoint) -> None:
    assert Api().send("GET", f"checkpoints/{checkpoint.id}/archive").status_code == 401


def test_a_retired_checkpoint_is_not_handed_out(api: Api, checkpoint: Checkpoint) -> None:
    Checkpoint.objects.filter(pk=checkpoint.pk).update(retired_at=checkpoint.created_at)
    assert api.send("GET", f"checkpoints/{checkpoint.id}/archive").status_code == 404


def test_a_file_beyond_the_limit_of_ustar_has_its_size_in_the_header(api: Api, checkpoint: Checkpoint) -> None:
    manifest = CheckpointManifest.model_validate(checkpoint.manifest)
    large = manifest.files[0].parts[0].model_copy(update={"plaintext_size": 9 * 2**30})
    files = [StoredFile(path="rank0", parts=[large])]
    encryptor = keys.encryptor(checkpoint.job_id, checkpoint.job.team)
    signed = authenticate(manifest.model_copy(update={"files": files}), encryptor)
    Checkpoint.objects.filter(pk=checkpoint.pk).update(manifest=signed.model_dump(mode="json"))
    answer = api.send("GET", f"checkpoints/{checkpoint.id}/archive")
    header = tarfile.TarInfo.frombuf(next(iter(answer.streaming_content)), "utf-8", "strict")
    assert header.size == 9 * 2**30
    assert int(answer["Content-Length"]) == 512 + 9 * 2**30 + 1024
