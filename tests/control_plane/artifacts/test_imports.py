"""A folder that a user uploads becomes a version of a model, or nothing: complete, encrypted, and of the team alone."""

import io
import json
import struct
import tarfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import ProgrammingError, connection, transaction
from django.utils import timezone

from athanor.accounts.models import AuditEvent, PlatformRole, Team, User
from athanor.accounts.roles import Role
from athanor.api.limits import Lane, limits_of
from athanor.artifacts import deletions, imports, keys, manifests, rotation, storage, usage
from athanor.artifacts.imports import Destination
from athanor.artifacts.models import Artifact, DataKey, ModelImport, ModelVersion, RegisteredModel
from athanor.artifacts.uploads import NewFile
from athanor.backups import referenced
from athanor.compliance import erasure, team_deletion
from athanor.core import tenancy
from athanor.core.errors import AthanorError
from athanor.jobs.models import Job
from tests.control_plane.answers import done
from tests.control_plane.artifacts.test_base_models import CONFIG, agent_answer, finished_model, going_on, started
from tests.control_plane.conftest import Api
from trainer.contract.encryption import DecryptionError, Encryptor
from trainer.contract.run import RunConfig

pytestmark = pytest.mark.django_db


def safetensors(**tensors: int) -> bytes:
    """A safetensors file of vectors of zeros in fp32, by their lengths."""
    entries, end = {}, 0
    for name, length in tensors.items():
        entries[name] = {"dtype": "F32", "shape": [length], "data_offsets": [end, end + 4 * length]}
        end += 4 * length
    header = json.dumps(entries).encode()
    return struct.pack("<Q", len(header)) + header + bytes(end)


FILES = {"config.json": CONFIG, "tokenizer.json": b"{}", "model.safetensors": safetensors(a=3, b=5)}


def tar(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def post(client: Api, body: bytes, query: str = "name=bot", **headers: str) -> Any:
    return client.generic("POST", f"/api/v1/models:import?{query}", body, content_type="application/x-tar", **headers)


def imported(client: Api, files: dict[str, bytes] = FILES, query: str = "name=bot") -> dict[str, Any]:
    answer = post(client, tar(files), query)
    assert answer.status_code == 201, answer.content
    found: dict[str, Any] = answer.json()
    return found


def refused(answer: Any, status: int, code: str) -> dict[str, Any]:
    """The problem of a request that was refused."""
    problem: dict[str, Any] = answer.json()
    assert (answer.status_code, problem["code"]) == (status, code), problem
    return problem


def is_empty(team: Team) -> bool:
    """Whether nothing of an import is stored or on record."""
    return not (
        ModelImport.objects.exists() or RegisteredModel.objects.exists() or Artifact.objects.exists()
        or DataKey.objects.exists() or storage.page(f"teams/{team.id}/").items
    )  # fmt: skip


@pytest.fixture
def owner(api_of: Callable, make_user: Callable, team: Team) -> Api:
    return api_of(make_user("hal", team, Role.ADMIN), team)


@pytest.fixture
def stranger(api_of: Callable, make_user: Callable, other_team: Team) -> Api:
    return api_of(make_user("bea", other_team, Role.ADMIN), other_team)


def test_an_import_is_a_version_with_all_digests(api: Api, user: User, team: Team, bucket: str) -> None:
    version = imported(api, query="name=bot&alias=candidate&tag=chat&tag=small")
    assert (version["number"], version["aliases"], version["job"], version["attempt"]) == (1, ["candidate"], None, None)
    assert (version["created_by"], version["not_trainable"], len(version["digest"])) == (user.username, "", 64)
    model = done(api.send("GET", f"models/{version['model']['id']}"))
    assert (model["tags"], model["versions"]) == (["chat", "small"], 1)
    artifact = Artifact.objects.get(pk=version["artifact"])
    assert (artifact.manifest["num_parameters"], artifact.job_id, artifact.owner) == (8, None, team)
    assert all(file["plaintext_sha256"] for file in artifact.manifest["files"])
    prefix = f"teams/{team.id}/models/{artifact.id}/"
    assert all(part["key"].startswith(prefix) for file in artifact.manifest["files"] for part in file["parts"])
    assert not any(b"hidden_size" in (storage.get(item.key) or b"") for item in storage.page(prefix).items)
    again = imported(api, query="name=bot&tag=new")
    assert again["number"] == 2
    assert done(api.send("GET", f"models/{version['model']['id']}"))["tags"] == ["chat", "new", "small"]
    actions = list(AuditEvent.objects.filter(target_id=model["id"]).order_by("seq").values_list("action", flat=True))
    assert actions == ["model.create", "model.register", "model.alias_move", "model.change", "model.register"]


def test_it_is_downloaded_decrypted_and_signed(owner: Api, bucket: str) -> None:
    version = imported(owner)
    answer = done(owner.send("POST", f"artifacts/{version['artifact']}:download"))
    encryptor = Encryptor(answer["data_key"])
    artifact = Artifact.objects.get(pk=version["artifact"])
    for file in manifests.of_stored(artifact).files:
        content = b"".join(encryptor.decrypt(storage.get(part.key) or b"", part) for part in file.parts)
        assert content == FILES[file.path]
    archive = owner.get(f"/api/v1/artifacts/{version['artifact']}/archive")
    with tarfile.open(fileobj=io.BytesIO(b"".join(archive.streaming_content))) as found:
        assert set(found.getnames()) == {f"bot/{name}" for name in (*FILES, "model.sig")}
    assert done(owner.send("POST", f"artifacts/{version['artifact']}:sign"))["dsseEnvelope"]


def test_a_job_starts_from_it_and_its_lineage_names_it(owner: Api, submit: Callable[..., Job], bucket: str) -> None:
    version = imported(owner, query="name=bot&alias=production")
    attempt = started(owner, "model:bot@production")
    config = RunConfig.model_validate(agent_answer(attempt, "run").json())
    assert config.base is not None
    assert config.training is not None
    assert config.training.model.base == f"model:{version['artifact']}"
    key = Encryptor(agent_answer(attempt, "keys").json()["base"])
    part = next(file for file in config.base.files if file.path == "config.json").parts[0]
    assert agent_answer(attempt, "storage:presign", {"operation": "get", "keys": [part.key]}).status_code == 200
    assert key.decrypt(storage.get(part.key) or b"", part) == CONFIG
    written = agent_answer(attempt, "storage:presign", {"operation": "put", "keys": [part.key]})
    assert written.json()["code"] == "outside_prefix"
    depends = done(owner.send("GET", f"models/{version['model']['id']}/versions/1/deletion"))
    assert [job["id"] for job in depends["blocked_by"]] == [attempt.job_id]
    graph = done(owner.send("GET", f"lineage?of={attempt.job_id}&direction=up"))
    (node,) = [each for each in graph["nodes"] if each["kind"] == "model"]
    assert (node["id"], node["state"], node["digest"], graph["cut"]) == (
        version["artifact"], "imported", version["digest"], [],
    )  # fmt: skip
    down = done(owner.send("GET", f"lineage?of={version['artifact']}&direction=down"))
    assert attempt.job_id in {each["id"] for each in down["nodes"]}


def test_its_documents_say_that_it_was_not_trained_here(owner: Api, bucket: str) -> None:
    version = imported(owner)
    path = f"models/{version['model']['id']}/versions/1"
    found = done(owner.send("GET", f"{path}/documentation"))
    assert found["limits"] == [
        "bot@1 was imported, not trained here: the data, compute and energy of its training are not on record."
    ]
    facts = {fact["name"]: fact["value"] for item in found["items"] for fact in item["facts"]}
    assert facts["Training"] == "imported, not trained here"
    assert facts["Parameters in the files"] == "8"
    assert "SHA-256" in facts["File model.safetensors"]
    refused(owner.send("POST", f"{path}/provenance"), 409, "not_trained_here")
    bom = done(owner.send("GET", f"{path}/bom"))
    component = bom["metadata"]["component"]
    assert {"name": "athanor:origin", "value": "imported, not trained here"} in component["properties"]
    assert component["modelCard"]["modelParameters"] == {}
    assert (bom["dependencies"], {each["name"] for each in component["components"]}) == ([], set(FILES))


TWO = {"model-1.safetensors": safetensors(a=3), "model-2.safetensors": safetensors(b=5)}
INDEX = json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}).encode()


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, "there is no config.json"),
        ({"config.json": CONFIG}, "there are no *.safetensors"),
        ({"config.json": b"[]", "model.safetensors": FILES["model.safetensors"]}, "config.json is not a JSON object"),
        ({**FILES, "pytorch_model.bin": b"x"}, "pytorch_model.bin may be a pickle"),
        ({**FILES, "optimizer.pt": b"x"}, "safe_serialization=True"),
        ({**FILES, "model.py": b"x"}, "model.py is no file of a model"),
        ({**FILES, "model.sig": b"x"}, "model.sig is a name that the platform gives"),
        ({**FILES, "../escape.json": b"{}"}, "'../escape.json' is no plain file name"),
        ({**FILES, "/etc/x.json": b"{}"}, "is no plain file name"),
        ({**FILES, "a/b.json": b"{}"}, "is no plain file name"),
        ({**FILES, "CONFIG.json": b"{}"}, "differ in upper and lower case alone"),
        ({**FILES, "model.safetensors": b"\x80\x04pickle"}, "is no safetensors file"),
        ({**FILES, "model.safetensors": b"x"}, "it has 1 bytes"),
        ({**FILES, "model.safetensors": FILES["model.safetensors"] + b"x"}, "its header describes"),
        ({**FILES, "model.safetensors": FILES["model.safetensors"][:-1]}, "its header describes"),
        ({"config.json": CONFIG, **TWO}, "there is no model.safetensors.index.json"),
        ({"config.json": CONFIG, "model-1.safetensors": TWO["model-1.safetensors"],
          "model.safetensors.index.json": INDEX}, "names 'model-2.safetensors' for b, which is missing"),
        ({"config.json": CONFIG, **TWO, "model.safetensors.index.json":
          INDEX.replace(b'"b"', b'"c"')}, "which is not in that file"),
        ({"config.json": CONFIG, **TWO, "model.safetensors.index.json":
          json.dumps({"weight_map": {"a": "model-1.safetensors"}}).encode()}, "does not name b"),
    ],
)  # fmt: skip
def test_what_is_no_complete_model_is_refused_and_leaves_nothing(
    api: Api, team: Team, bucket: str, files: dict[str, bytes], says: str
) -> None:
    found = refused(post(api, tar(files)), 422, "invalid_model")
    assert says in found["detail"]
    assert is_empty(team)


def test_links_and_incomplete_bodies_are_refused(api: Api, team: Team, bucket: str) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        link = tarfile.TarInfo("config.json")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    assert "no ordinary file" in refused(post(api, buffer.getvalue()), 422, "invalid_model")["detail"]
    body = tar(FILES)
    assert post(api, body[: body.index(FILES["model.safetensors"]) + 20]).status_code == 422
    assert is_empty(team)


def test_a_complete_index_is_accepted(api: Api, bucket: str) -> None:
    files = {"config.json": CONFIG, "tokenizer.json": b"{}", **TWO, "model.safetensors.index.json": INDEX}
    assert imported(api, files)["number"] == 1


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({**FILES, "config.json": b'{"model_type": "gpt2"}'}, "model_type is 'gpt2'"),
        ({name: FILES[name] for name in FILES if name != "tokenizer.json"}, "it has no tokenizer.json"),
    ],
)
def test_a_model_of_another_family_is_stored_and_said_not_to_be_trainable(
    api: Api, submit: Callable[..., Job], bucket: str, files: dict[str, bytes], says: str
) -> None:
    version = imported(api, files, "name=bot&alias=production")
    assert says in version["not_trainable"]
    shown = done(api.send("GET", f"models/{version['model']['id']}/versions/1"))
    assert shown["not_trainable"] == version["not_trainable"]
    problem = refused(api.send("POST", "jobs", going_on("model:bot@production")), 422, "invalid_spec")
    assert problem["errors"][0]["pointer"] == "/training/model/base"


def test_a_repeated_request_makes_one_version(api: Api, bucket: str) -> None:
    first = post(api, tar(FILES), HTTP_IDEMPOTENCY_KEY="k-1")
    again = post(api, tar(FILES), HTTP_IDEMPOTENCY_KEY="k-1")
    assert (first.status_code, again.status_code, again["Idempotency-Replayed"]) == (201, 201, "true")
    assert again.json() == first.json()
    other = post(api, tar({**FILES, "README.md": b"x"}), HTTP_IDEMPOTENCY_KEY="k-1")
    assert other.json()["code"] == "idempotency_key_reused"
    assert (ModelVersion.objects.count(), ModelImport.objects.count()) == (1, 1)


def test_of_two_equal_requests_at_a_time_the_later_gets_the_answer_of_the_first(
    api: Api, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_all = imports._Incoming.take_all

    def overtaken(*args: Any) -> Any:
        monkeypatch.setattr(imports._Incoming, "take_all", take_all)
        first.append(post(api, tar(FILES), HTTP_IDEMPOTENCY_KEY="k-1"))
        return take_all(*args)

    first: list[Any] = []
    monkeypatch.setattr(imports._Incoming, "take_all", overtaken)
    later = post(api, tar(FILES), HTTP_IDEMPOTENCY_KEY="k-1")
    assert (first[0].status_code, later.status_code, later["Idempotency-Replayed"]) == (201, 201, "true")
    assert later.json() == first[0].json()
    assert (ModelVersion.objects.count(), ModelImport.objects.count()) == (1, 1)


@pytest.mark.django_db(transaction=True)
def test_two_imports_at_a_time_are_two_versions(team: Team, user: User, bucket: str) -> None:
    def run(_: int) -> int:
        try:
            files = [NewFile(name, "", [content]) for name, content in FILES.items()]
            return imports.import_model(team, user, Destination("bot", "latest"), files).number
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(run, range(2))) == [1, 2]
    assert RegisteredModel.objects.get().last_version == 2


def test_an_upload_that_stops_is_never_a_version_and_is_swept(team: Team, user: User, bucket: str) -> None:
    class Killed(BaseException):
        pass

    def stopping() -> Iterator[NewFile]:
        yield NewFile("config.json", "", [CONFIG])
        raise Killed

    with pytest.raises(Killed):
        imports.import_model(team, user, Destination("bot"), stopping())
    assert is_empty(team)
    # A worker that is killed cleans nothing up: what it leaves is its record, key and objects.
    row = ModelImport.objects.create(artifact_id="art_01", team=team, user=user)
    keys.data_key("art_01", team)
    storage.put(f"{imports.prefix_of(row)}00000", b"x")
    now = timezone.now()
    assert imports.sweep(now + imports.EXPIRES) == 0, "it may still be running"
    assert imports.sweep(now + imports.SWEPT_AFTER + timedelta(minutes=1)) == 1
    assert is_empty(team)


def test_an_upload_that_takes_longer_than_the_sweep_waits_is_refused(
    team: Team, user: User, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imports, "EXPIRES", timedelta(0))
    with pytest.raises(AthanorError, match="taken longer"):
        imports.import_model(team, user, Destination("bot"), [NewFile("config.json", "", [CONFIG])])
    assert is_empty(team)


def test_a_stored_import_is_not_swept(api: Api, bucket: str) -> None:
    imported(api)
    assert imports.sweep(timezone.now() + timedelta(days=30)) == 0
    assert ModelVersion.objects.count() == 1


def test_it_counts_as_storage_until_it_is_purged(owner: Api, team: Team, bucket: str) -> None:
    version = imported(owner)
    artifact = version["artifact"]
    assert usage.stored_bytes([team.id])[team.id] == version["size_bytes"]
    backed_up = [file["path"] for files in referenced._files() for file in files]
    assert set(backed_up) == set(FILES)
    assert refused(owner.send("DELETE", f"artifacts/{artifact}"), 409, "registered_version")
    done(owner.send("DELETE", f"models/{version['model']['id']}/versions/1"))
    done(owner.send("DELETE", f"artifacts/{artifact}?permanently=true"))
    assert deletions.purge_due() == 1
    assert usage.stored_bytes([team.id]).get(team.id, 0) == 0
    assert not DataKey.objects.filter(owner=artifact).exists()
    assert not storage.page(f"teams/{team.id}/").items


def test_above_the_storage_limit_nothing_is_imported(owner: Api, team: Team, bucket: str) -> None:
    node = team.quota_node
    type(node).objects.filter(pk=node.pk).update(max_storage_bytes=100)
    assert refused(post(owner, tar(FILES)), 409, "storage_full")
    assert is_empty(team)


def test_other_teams_reach_it_only_by_a_grant_and_only_for_reading(
    owner: Api, stranger: Api, submit: Callable[..., Job], bucket: str
) -> None:
    version = imported(owner, query="name=bot&alias=production")
    model, artifact = version["model"]["id"], version["artifact"]
    for path in (f"artifacts/{artifact}", f"models/{model}/versions/1", f"lineage?of={artifact}"):
        assert stranger.send("GET", path).status_code == 404
    assert stranger.send("POST", f"artifacts/{artifact}:download").status_code == 404
    refused(post(stranger, tar(FILES), "name=bot&team=red"), 422, "invalid_spec")
    done(owner.send("PUT", f"models/{model}/grants/blue"))
    answer = done(stranger.send("POST", f"artifacts/{artifact}:download"))
    assert answer["artifact"]["job"] is None
    assert done(stranger.send("GET", f"models/{model}/versions/1"))["job"] is None
    assert stranger.send("POST", "jobs", going_on("model:red/bot@production")).status_code == 201
    assert stranger.send("DELETE", f"artifacts/{artifact}").status_code == 404
    refused(post(stranger, tar(FILES), "name=bot&team=red"), 422, "invalid_spec")
    assert imported(stranger)["model"]["id"] != model, "the same name is a model of their own"


def test_row_security_hides_it_from_others_and_from_writes_of_a_reader(
    owner: Api, team: Team, other_team: Team, bucket: str
) -> None:
    version = imported(owner)
    done(owner.send("PUT", f"models/{version['model']['id']}/grants/blue"))
    tenancy.restrict([other_team.id])
    assert Artifact.objects.filter(pk=version["artifact"]).count() == 1
    assert Artifact.objects.filter(pk=version["artifact"]).update(name="mine") == 0
    assert ModelImport.objects.filter(pk=version["artifact"]).update(not_trainable="x") == 0
    with pytest.raises(ProgrammingError), transaction.atomic():
        ModelImport.objects.create(artifact_id="art_02", team=team)
    with pytest.raises(ProgrammingError), transaction.atomic():
        Artifact.objects.create(id="art_02", kind="model", name="x", step=0, size_bytes=1, manifest={})
    tenancy.restrict([])
    assert not Artifact.objects.filter(pk=version["artifact"]).exists()
    assert not ModelImport.objects.exists()


def test_a_manifest_of_another_import_or_job_is_refused(owner: Api, submit: Callable[..., Job], bucket: str) -> None:
    first, second = imported(owner), imported(owner, {**FILES, "README.md": b"second"})
    exported, _ = finished_model(submit)
    for other in (second["artifact"], exported.id):
        manifest = Artifact.objects.get(pk=other).manifest
        Artifact.objects.filter(pk=first["artifact"]).update(manifest=manifest)
        refused(owner.send("POST", f"artifacts/{first['artifact']}:download"), 409, "manifest_not_authentic")


def test_altered_bytes_are_not_handed_out(owner: Api, bucket: str) -> None:
    version = imported(owner)
    manifest = Artifact.objects.get(pk=version["artifact"]).manifest
    key = manifest["files"][0]["parts"][0]["key"]
    content = bytearray(storage.get(key) or b"")
    content[-1] ^= 1
    storage.put(key, bytes(content))
    archive = owner.get(f"/api/v1/artifacts/{version['artifact']}/archive")
    with pytest.raises(DecryptionError):
        b"".join(archive.streaming_content)


def test_keys_are_rotated_and_erased_with_the_team(
    owner: Api, stranger: Api, make_user: Callable, team: Team, bucket: str
) -> None:
    version = imported(owner)
    assert rotation.rotate_team(team) > 0
    assert done(owner.send("POST", f"artifacts/{version['artifact']}:download"))["data_key"]
    user = make_user("root", team, Role.ADMIN)
    User.objects.filter(pk=user.pk).update(platform_role=PlatformRole.PLATFORM_ADMIN.value)
    team_deletion.delete(team, User.objects.get(pk=user.pk), permanently=True)
    assert erasure.run_due() == 1
    with tenancy.unrestricted():
        assert is_empty(team)


def test_bodies_of_any_size_are_streamed() -> None:
    limits = limits_of("/api/v1/models:import")
    assert (limits.lane, limits.body_bytes) == (Lane.TRANSFER, None)
