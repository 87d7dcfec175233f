"""Signing keys of teams, and the signatures of exported models that they make."""

import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from athanor.accounts.models import AuditEvent, Team, User
from athanor.artifacts import signing_keys
from athanor.artifacts.models import Artifact, SigningKey
from athanor.core import encryption
from athanor.core.errors import Misconfigured
from athanor.jobs.models import Job
from tests.control_plane.artifacts.test_base_models import FILES, finished_model
from tests.control_plane.artifacts.test_manifests import rewrite
from tests.control_plane.conftest import Api
from trainer.contract.model_signature import (
    SIGNATURE_NAME,
    SignatureRefused,
    SignedModel,
    read_signature,
    verify_folder,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def admin(api_of: Callable, make_user: Callable, team: Team) -> Api:
    return api_of(make_user("hal", team, "admin"), team)


@pytest.fixture
def model(submit: Callable[..., Job], bucket: str) -> Artifact:
    return finished_model(submit)[0]


def listed(api: Api, team: Team) -> list[dict[str, Any]]:
    return api.send("GET", f"teams/{team.id}/signing-keys").json()["items"]


def signature_of(api: Api, model: Artifact) -> bytes:
    answer = api.send("POST", f"artifacts/{model.id}:sign")
    assert answer.status_code == 200, answer.content
    return json.dumps(answer.json()).encode()


def opened(api: Api, team: Team, signature: bytes) -> SignedModel:
    keys = listed(api, team)
    return read_signature(
        signature,
        {key["fingerprint"]: key["public_key"] for key in keys},
        {key["fingerprint"]: key["revocation_reason"] for key in keys if key["state"] == "revoked"},
    )


def test_the_first_signature_creates_the_teams_key_and_names_what_was_exported(
    api: Api, team: Team, model: Artifact
) -> None:
    assert listed(api, team) == []
    signed = opened(api, team, signature_of(api, model))
    (key,) = listed(api, team)
    assert signed.files == {path: hashlib.sha256(content).hexdigest() for path, content in FILES.items()}
    assert (signed.fingerprint, key["state"]) == (key["fingerprint"], "active")
    assert signed.record is not None
    assert (signed.record.team, signed.record.job, signed.record.artifact) == (team.name, model.job_id, model.id)
    again = opened(api, team, signature_of(api, model))
    assert again.fingerprint == signed.fingerprint
    seen = AuditEvent.objects.filter(action="artifact.sign")
    assert [event.after["fingerprint"] for event in seen] == [signed.fingerprint] * 2
    assert "PRIVATE" not in json.dumps(listed(api, team))


def test_a_rotated_key_signs_no_more_and_its_signatures_stay_valid(
    admin: Api, team: Team, user: User, model: Artifact
) -> None:
    before = signature_of(admin, model)
    old = opened(admin, team, before).fingerprint
    answer = admin.send("POST", f"teams/{team.id}/signing-keys:rotate")
    assert (answer.status_code, answer.json()["state"]) == (201, "active")
    assert [key["state"] for key in listed(admin, team)] == ["active", "retired"]
    assert opened(admin, team, signature_of(admin, model)).fingerprint == answer.json()["fingerprint"] != old
    assert opened(admin, team, before).fingerprint == old
    assert private_half(team, old) == "", "the private half of the old key is destroyed"
    assert "PRIVATE" in private_half(team, answer.json()["fingerprint"])


def private_half(team: Team, fingerprint: str) -> str:
    row = SigningKey.objects.annotate(team_wrapped=signing_keys.keys.TEAM_WRAPPED).get(fingerprint=fingerprint)
    return signing_keys.keys.opened(row, signing_keys.owner_of(row))


def test_signatures_by_a_revoked_key_are_refused_and_the_next_one_is_by_another(
    admin: Api, team: Team, model: Artifact
) -> None:
    before = signature_of(admin, model)
    (key,) = listed(admin, team)
    path = f"signing-keys/{key['id']}:revoke"
    assert admin.send("POST", path, {}).status_code == 422
    answer = admin.send("POST", path, {"reason": "found in a log"})
    assert (answer.status_code, answer.json()["state"], answer.json()["revoked_by"]) == (200, "revoked", "hal")
    with pytest.raises(SignatureRefused, match="revoked: found in a log"):
        opened(admin, team, before)
    assert private_half(team, key["fingerprint"]) == ""
    again = admin.send("POST", path, {"reason": "another"}).json()
    assert (again["revocation_reason"], again["revoked_at"]) == ("found in a log", answer.json()["revoked_at"])
    assert opened(admin, team, signature_of(admin, model)).fingerprint != key["fingerprint"]
    seen = AuditEvent.objects.get(action="signing_key.revoke")
    assert seen.after == {"fingerprint": key["fingerprint"], "reason": "found in a log"}


def test_only_administrators_change_keys_and_other_teams_see_none(
    admin: Api, api: Api, api_of: Callable, make_user: Callable, team: Team, other_team: Team, model: Artifact
) -> None:
    signature_of(api, model)
    (key,) = listed(api, team)
    assert api.send("POST", f"teams/{team.id}/signing-keys:rotate").status_code == 403
    assert api.send("POST", f"signing-keys/{key['id']}:revoke", {"reason": "x"}).status_code == 403
    stranger = api_of(make_user("eve", other_team, "admin"), other_team)
    assert stranger.send("GET", f"teams/{team.id}/signing-keys").status_code == 404
    assert stranger.send("POST", f"signing-keys/{key['id']}:revoke", {"reason": "x"}).status_code == 404
    assert stranger.send("POST", f"artifacts/{model.id}:sign").status_code == 404
    assert [row["state"] for row in listed(admin, team)] == ["active"]


def test_an_export_without_digests_is_not_signed(api: Api, team: Team, model: Artifact) -> None:
    model.manifest["files"][0]["plaintext_sha256"] = None
    manifest = signing_keys.manifests.ModelManifest.model_validate({**model.manifest, "tag": ""})
    with_tag = signing_keys.manifests.tagged(manifest, signing_keys.manifests.encryptor_of(model.job))
    rewrite("artifacts_artifact", model.id, with_tag.model_dump(mode="json"))
    answer = api.send("POST", f"artifacts/{model.id}:sign")
    assert (answer.status_code, answer.json()["code"]) == (409, "not_signable")
    assert listed(api, team) == []
    archive = b"".join(api.get(f"/api/v1/artifacts/{model.id}/archive").streaming_content)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        assert not [name for name in tar.getnames() if name.endswith(SIGNATURE_NAME)]


def test_a_forged_digest_is_not_signed(api: Api, team: Team, model: Artifact) -> None:
    model.manifest["files"][0]["plaintext_sha256"] = "0" * 64
    rewrite("artifacts_artifact", model.id, model.manifest)
    answer = api.send("POST", f"artifacts/{model.id}:sign")
    assert (answer.status_code, answer.json()["code"]) == (409, "manifest_not_authentic")


def test_an_archive_contains_the_signature(api: Api, team: Team, model: Artifact, tmp_path: Path) -> None:
    answer = api.get(f"/api/v1/artifacts/{model.id}/archive")
    content = b"".join(answer.streaming_content)
    assert len(content) == int(answer["Content-Length"])
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        tar.extractall(tmp_path, filter="data")
    keys = {key["fingerprint"]: key["public_key"] for key in listed(api, team)}
    assert verify_folder(tmp_path / model.job.name, keys, {}).record.artifact == model.id


def test_a_new_team_key_and_a_new_master_key_leave_the_signing_key_usable(
    api: Api, team: Team, model: Artifact, settings: Any
) -> None:
    before = opened(api, team, signature_of(api, model)).fingerprint
    wrapped = bytes(SigningKey.objects.get().wrapped)
    call_command("rotate_team_key", team.name)
    assert bytes(SigningKey.objects.get().wrapped) != wrapped
    old, new = settings.ATHANOR.master_key, encryption.new_wrapping_keyset()
    settings.ATHANOR = settings.ATHANOR.model_copy(update={"master_key": new, "previous_master_key": old})
    call_command("rotate_master_key")
    settings.ATHANOR = settings.ATHANOR.model_copy(update={"previous_master_key": ""})
    assert opened(api, team, signature_of(api, model)).fingerprint == before


def test_a_private_key_in_the_row_of_another_team_does_not_open(
    api: Api, team: Team, other_team: Team, user: User, model: Artifact
) -> None:
    signature_of(api, model)
    theirs = signing_keys.rotate(other_team, user)
    SigningKey.objects.filter(team=team).update(wrapped=theirs.wrapped)
    with pytest.raises(Misconfigured):
        signing_keys.sign(model, user)
