"""Downloads of encrypted models: complete or not at all, damage is refused, interrupted downloads resume."""

import copy
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainer.contract.encryption import Encryptor, authenticate, new_keyset
from trainer.contract.manifest import CheckpointManifest, ModelManifest
from trainer.contract.model_signature import (
    ExportRecord,
    fingerprint_of,
    new_private_key,
    public_half,
    sign,
    verify_folder,
)

WEIGHTS = bytes(range(256)) * 40
PIECES = [WEIGHTS[:4096], WEIGHTS[4096:8192], WEIGHTS[8192:]]


def signature(files: list[dict[str, Any]], private_key: str, artifact: str = "art_1") -> dict[str, Any]:
    record = ExportRecord(
        team="red", job="job_1", attempt="att_1", artifact=artifact, step=5, signed_at="2026-01-02T03:04:05+00:00"
    )
    return sign({file["path"]: file["plaintext_sha256"] for file in files}, "tiny", record, private_key)


def listed_keys(private_key: str, state: str = "active") -> dict[str, Any]:
    public_key = public_half(private_key)
    row = {
        "id": "sgk_1", "state": state, "fingerprint": fingerprint_of(public_key), "public_key": public_key,
        "revocation_reason": "it leaked", "created_at": "2026-01-02T03:04:05Z",
    }  # fmt: skip
    return {"items": [row], "next_cursor": None}


@pytest.fixture
def model(server, answer) -> Any:
    """A model of two files, the weights in three parts, offered by the server. Returns the parts' keys."""
    keyset = new_keyset()
    encryptor = Encryptor(keyset)
    files, keys = [], []
    for path, pieces in (("config.json", [b"{}"]), ("weights/model.safetensors", PIECES)):
        parts = []
        for index, piece in enumerate(pieces):
            key = f"jobs/job_1/{path}-{index}"
            ciphertext, part = encryptor.encrypt(piece, key)
            server.answer(f"GET /store/{key}", answer(ciphertext))
            parts.append({**part.model_dump(), "url": f"{server.url}/store/{key}"})
            keys.append(key)
        digest = hashlib.sha256(b"".join(pieces)).hexdigest()
        files.append({"path": path, "size": sum(map(len, pieces)), "parts": parts, "plaintext_sha256": digest})
    manifest = ModelManifest(
        job_id="job_1", attempt_id="att_1", step=5, num_parameters=1, created_at="2026-01-02T03:04:05Z", files=files
    )
    artifact = {
        "id": "art_1", "job": "job_1", "kind": "model", "name": "tiny", "step": 5, "created_at": "2026-01-02T03:04:05Z",
        "size_bytes": len(WEIGHTS) + 2, "files": [{"path": f["path"], "size": f["size"]} for f in files], "metrics": {},
        "team": {"id": "team_1", "name": "red"},
    }  # fmt: skip
    server.answer("GET /api/v1/jobs/job_1/artifacts", answer({"items": [artifact], "next_cursor": None}))
    signing_key = new_private_key()
    server.answer("POST /api/v1/artifacts/art_1:sign", answer(signature(files, signing_key)))
    server.answer("GET /api/v1/teams/team_1/signing-keys", answer(listed_keys(signing_key)))
    server.answer(
        "POST /api/v1/artifacts/art_1:download",
        answer(
            {
                "artifact": artifact,
                "files": files,
                "manifest": authenticate(manifest, encryptor).model_dump(mode="json"),
                "data_key": keyset,
                "expires_at": "2026-01-02T04:04:05Z",
            }
        ),
    )
    return keys


def with_manifest(server, answer, change: Callable[[dict[str, Any], Encryptor], dict[str, Any] | None]) -> None:
    """Let the server send another manifest and a matching list of files."""
    name = "POST /api/v1/artifacts/art_1:download"
    content = copy.deepcopy(server.answers[name][0].body)
    urls = {part["key"]: part["url"] for file in content["files"] for part in file["parts"]}
    content["manifest"] = change(content["manifest"], Encryptor(content["data_key"]))
    if content["manifest"]:
        content["files"] = [
            {**file, "size": 1, "parts": [{**part, "url": urls.get(part["key"], "")} for part in file["parts"]]}
            for file in content["manifest"]["files"]
        ]
    server.answer(name, answer(content))


def swap_files(manifest: dict[str, Any], encryptor: Encryptor) -> dict[str, Any]:
    first, second = manifest["files"]
    first["parts"], second["parts"] = second["parts"], first["parts"]
    return manifest


def swap_parts(manifest: dict[str, Any], encryptor: Encryptor) -> dict[str, Any]:
    manifest["files"][1]["parts"][:2] = reversed(manifest["files"][1]["parts"][:2])
    return manifest


def drop_part(manifest: dict[str, Any], encryptor: Encryptor) -> dict[str, Any]:
    del manifest["files"][1]["parts"][-1]
    return manifest


def drop_file(manifest: dict[str, Any], encryptor: Encryptor) -> dict[str, Any]:
    del manifest["files"][0]
    return manifest


def older(manifest: dict[str, Any], encryptor: Encryptor) -> dict[str, Any]:
    return authenticate(ModelManifest.model_validate({**manifest, "step": 4}), encryptor).model_dump(mode="json")


def of_another_job(manifest: dict[str, Any], encryptor: Encryptor) -> dict[str, Any]:
    return authenticate(ModelManifest.model_validate({**manifest, "job_id": "job_2"}), encryptor).model_dump(
        mode="json"
    )


def without_tag(manifest: dict[str, Any], encryptor: Encryptor) -> dict[str, Any]:
    return {**manifest, "tag": ""}


def missing(manifest: dict[str, Any], encryptor: Encryptor) -> None:
    return None


@pytest.mark.parametrize(
    "change", [swap_files, swap_parts, drop_part, drop_file, older, of_another_job, without_tag, missing]
)
def test_a_manifest_that_the_job_did_not_make_is_refused(server, athanor, answer, model, change) -> None:
    with_manifest(server, answer, change)
    result = athanor("download", "job_1", "--output", "out")
    assert result.returncode == 5
    assert "manifest" in result.stderr
    assert fetched(server) == []
    assert not (athanor.home / "out").exists()


def fetched(server) -> list[str]:
    return [seen.path.removeprefix("/store/") for seen in server.seen if seen.path.startswith("/store/")]


def test_a_model_arrives_decrypted_and_a_second_run_fetches_nothing(server, athanor, model) -> None:
    result = athanor("download", "job_1", "--output", "out", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["files"][1] == {"path": "weights/model.safetensors", "size": len(WEIGHTS)}
    assert (athanor.home / "out" / "weights" / "model.safetensors").read_bytes() == WEIGHTS
    count = len(fetched(server))
    again = athanor("download", "job_1", "--output", "out", "--json")
    assert again.returncode == 0
    assert json.loads(again.stdout)["already_there"] is True
    assert len(fetched(server)) == count


def test_a_download_writes_the_signature_and_verifies_it(server, athanor, model) -> None:
    (key,) = server.answers["GET /api/v1/teams/team_1/signing-keys"][0].body["items"]
    result = athanor("download", "job_1", "--output", "out")
    assert result.returncode == 0, result.stderr
    assert key["fingerprint"] in result.stdout
    signed = verify_folder(athanor.home / "out", {key["fingerprint"]: key["public_key"]}, {})
    assert signed.record is not None
    assert signed.record.artifact == "art_1"
    with (athanor.home / "out" / "config.json").open("a") as file:
        file.write(" ")
    again = athanor("download", "job_1", "--output", "out")
    assert again.returncode == 5
    assert "config.json was altered" in again.stderr
    assert "into another folder with --output" in " ".join(again.stderr.split())
    printed = athanor("model", "sign", "job_1")
    assert json.loads(printed.stdout) == server.answers["POST /api/v1/artifacts/art_1:sign"][0].body


@pytest.mark.parametrize("attack", ["revoked", "same_files", "altered"])
def test_a_download_with_a_signature_that_is_refused_leaves_nothing(server, athanor, answer, model, attack) -> None:
    files = server.answers["POST /api/v1/artifacts/art_1:download"][0].body["files"]
    keys, mine = "GET /api/v1/teams/team_1/signing-keys", new_private_key()
    server.answer(keys, answer(listed_keys(mine, "revoked" if attack == "revoked" else "active")))
    other = [{**file, "plaintext_sha256": "0" * 64} for file in files]
    bundle = {
        "revoked": signature(files, mine),
        "same_files": signature(files, mine, "art_2"),
        "altered": signature(other, mine),
    }[attack]
    server.answer("POST /api/v1/artifacts/art_1:sign", answer(bundle))
    result = athanor("download", "job_1", "--output", "out")
    assert result.returncode == 5
    message = " ".join(result.stderr.split())
    expected = {
        "revoked": "revoked: it leaked",
        "same_files": "is of another model",
        "altered": "was altered",
    }[attack]
    assert expected in message
    assert not (athanor.home / "out").exists()
    assert not (athanor.home / "out.partial").exists()


def test_with_a_key_file_the_platforms_list_of_keys_is_not_trusted(server, athanor, model) -> None:
    """A platform that was taken over can sign with a key of its own, and list it as the team's."""
    (listed,) = server.answers["GET /api/v1/teams/team_1/signing-keys"][0].body["items"]
    (athanor.home / "theirs.pem").write_text(public_half(new_private_key()))
    (athanor.home / "team.pub.pem").write_text(listed["public_key"])
    refused = athanor("download", "job_1", "--output", "out", "--key", "theirs.pem")
    assert refused.returncode == 5
    assert "is not among the given ones" in " ".join(refused.stderr.split())
    assert not (athanor.home / "out").exists()
    assert athanor("download", "job_1", "--output", "out", "--key", "team.pub.pem").returncode == 0


def test_a_model_without_digests_is_reported_as_unsigned_and_refused_where_a_key_is_given(
    server, athanor, answer, model
) -> None:
    def without_digests(manifest: dict[str, Any], encryptor: Encryptor) -> dict[str, Any]:
        files = [{**file, "plaintext_sha256": None} for file in manifest["files"]]
        return authenticate(ModelManifest.model_validate({**manifest, "files": files}), encryptor).model_dump(
            mode="json"
        )

    (listed,) = server.answers["GET /api/v1/teams/team_1/signing-keys"][0].body["items"]
    (athanor.home / "team.pub.pem").write_text(listed["public_key"])
    urls = copy.deepcopy(server.answers["POST /api/v1/artifacts/art_1:download"][0].body["files"])
    with_manifest(server, answer, without_digests)
    server.answers["POST /api/v1/artifacts/art_1:download"][0].body["files"] = urls
    refused = athanor("download", "job_1", "--output", "out", "--key", "team.pub.pem")
    assert refused.returncode == 5
    assert "cannot be signed" in " ".join(refused.stderr.split())
    assert fetched(server) == []
    result = athanor("download", "job_1", "--output", "out")
    assert result.returncode == 0, result.stderr
    assert "not signed" in result.stdout
    assert not (athanor.home / "out" / "model.sig").exists()


@pytest.mark.parametrize("is_altered", [False, True])
def test_a_signature_that_was_removed_from_a_downloaded_folder_is_missed(athanor, model, is_altered: bool) -> None:
    folder = athanor.home / "out"
    assert athanor("download", "job_1", "--output", "out").returncode == 0
    (folder / "model.sig").unlink()
    if is_altered:
        (folder / "config.json").write_text('{"auto_map": {}}')
    refused = athanor("download", "job_1", "--output", "out")
    assert refused.returncode == 5, refused.stdout
    assert "has no signature: there is no file model.sig in it" in " ".join(refused.stderr.split())
    assert "or remove" in refused.stderr


@pytest.mark.parametrize("damage", ["flipped", "truncated", "swapped"])
def test_a_damaged_part_is_refused_and_nothing_bears_the_final_name(server, athanor, answer, model, damage) -> None:
    victim = f"GET /store/{model[2]}"
    ciphertext = server.answers[victim][0].body
    changed = {
        "flipped": ciphertext[:100] + bytes([ciphertext[100] ^ 1]) + ciphertext[101:],
        "truncated": ciphertext[:-1],
        "swapped": server.answers[f"GET /store/{model[1]}"][0].body,
    }[damage]
    server.answer(victim, answer(changed))
    result = athanor("download", "job_1", "--output", "out")
    assert result.returncode == 5
    assert "damaged" in result.stderr
    assert not (athanor.home / "out").exists()


def test_an_interrupted_download_goes_on_behind_the_last_whole_part(server, athanor, answer, model) -> None:
    victim = f"GET /store/{model[3]}"
    whole = server.answers[victim]
    server.answer(victim, answer(whole[0].body[:10]))
    assert athanor("download", "job_1", "--output", "out").returncode == 5
    partial = athanor.home / "out.partial" / "weights" / "model.safetensors"
    with partial.open("ab") as handle:
        handle.write(b"half of a part")
    server.answer(victim, *whole)
    server.seen.clear()
    assert athanor("download", "job_1", "--output", "out").returncode == 0
    assert fetched(server) == [model[3]]
    assert (athanor.home / "out" / "weights" / "model.safetensors").read_bytes() == WEIGHTS


def test_an_expired_link_is_asked_for_again(server, athanor, answer, model) -> None:
    victim = f"GET /store/{model[1]}"
    server.answer(victim, answer(b"", 403), *server.answers[victim])
    assert athanor("download", "job_1", "--output", "out").returncode == 0
    asked = [seen for seen in server.seen if seen.path.endswith("art_1:download")]
    assert len(asked) == 2


def test_a_folder_with_other_files_is_left_alone(athanor, model) -> None:
    Path(athanor.home / "out").mkdir()
    Path(athanor.home / "out" / "mine.txt").write_text("mine")
    result = athanor("download", "job_1", "--output", "out")
    assert result.returncode == 2
    assert [path.name for path in (athanor.home / "out").iterdir()] == ["mine.txt"]


def test_a_job_without_a_model_says_how_to_wait_for_it(server, athanor, answer) -> None:
    server.answer("GET /api/v1/jobs/job_1/artifacts", answer({"items": [], "next_cursor": None}))
    server.answer("GET /api/v1/jobs/job_1", answer({"id": "job_1", "status": "running"}))
    result = athanor("download", "job_1")
    assert result.returncode == 4
    assert "athanor watch job_1" in result.stderr


def test_generate_names_a_folder_that_holds_no_model(athanor) -> None:
    result = athanor("generate", "nowhere")
    assert result.returncode == 2
    assert "nowhere" in result.stderr


def test_generate_says_that_an_adapter_needs_its_model(athanor, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    result = athanor("generate", str(tmp_path))
    assert result.returncode == 2
    assert "adapter without its model" in " ".join(result.stderr.split())


@pytest.fixture
def checkpoints(server, answer) -> Any:
    """Two checkpoints of a job, of the steps 10 and 20, offered by the server. Returns the server's list of them."""
    keyset = new_keyset()
    encryptor = Encryptor(keyset)
    listed = []
    for step in (20, 10):
        content = f"state after {step}".encode()
        ciphertext, part = encryptor.encrypt(content, f"jobs/job_1/checkpoints/{step}")
        server.answer(f"GET /store/{part.key}", answer(ciphertext))
        file = {"path": "rank0", "parts": [{**part.model_dump(), "url": f"{server.url}/store/{part.key}"}]}
        manifest = CheckpointManifest(
            job_id="job_1", attempt_id="att_1", generation=0, step=step, tokens_seen=1, data_position=1, world_size=1,
            mesh={}, spec_digest="s", dataset_fingerprint="d", torch_version="2", created_at="2026-01-02T03:04:05Z",
            files=[file],
        )  # fmt: skip
        checkpoint = {
            "id": f"ckp_{step}", "job": "job_1", "attempt": "att_1", "step": step, "size_bytes": len(content),
            "files": [{"path": "rank0", "size": len(content)}], "authentic": True, "metrics": {}, "world_size": 1,
            "generation": 0, "created_at": "2026-01-02T03:04:05Z",
        }  # fmt: skip
        handed = {
            "checkpoint": checkpoint, "files": [{**file, "size": len(content)}], "data_key": keyset,
            "manifest": authenticate(manifest, encryptor).model_dump(mode="json"), "expires_at": "2026-01-02T04:04:05Z",
        }  # fmt: skip
        server.answer(f"POST /api/v1/checkpoints/ckp_{step}:download", answer(handed))
        listed.append(checkpoint)
    server.answer("GET /api/v1/jobs/job_1/checkpoints", answer({"items": listed, "next_cursor": None}))
    return listed


@pytest.mark.parametrize(("which", "step"), [("latest", 20), ("10", 10), ("ckp_10", 10)])
def test_a_checkpoint_is_downloaded_by_its_step(server, athanor, checkpoints, which: str, step: int) -> None:
    result = athanor("download", "job_1", "--checkpoint", which, "out", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["checkpoint"] == f"ckp_{step}"
    assert (athanor.home / "out" / "rank0").read_bytes() == f"state after {step}".encode()


def test_the_latest_checkpoint_is_the_newest_that_is_intact(server, athanor, answer, checkpoints) -> None:
    page = {"items": [{**each, "state": "diverged" if each["step"] == 20 else "intact"} for each in checkpoints]}
    server.answer("GET /api/v1/jobs/job_1/checkpoints", answer({**page, "next_cursor": None}))
    result = athanor("download", "job_1", "--checkpoint", "latest", "out", "--json")
    assert json.loads(result.stdout)["checkpoint"] == "ckp_10"
    page = {"items": [{**each, "state": "damaged"} for each in checkpoints], "next_cursor": None}
    server.answer("GET /api/v1/jobs/job_1/checkpoints", answer(page))
    result = athanor("download", "job_1", "--checkpoint", "latest", "other")
    assert result.returncode == 4
    assert "no checkpoint of job_1 is intact" in " ".join(result.stderr.split())
    assert athanor("download", "job_1", "--checkpoint", "20", "other").returncode == 0


def test_a_step_without_a_checkpoint_names_those_that_have_one(server, athanor, answer, checkpoints) -> None:
    result = athanor("download", "job_1", "--checkpoint", "15", "out")
    assert result.returncode == 4
    assert "those of the steps 10, 20" in " ".join(result.stderr.split())
    server.answer("GET /api/v1/jobs/job_1/checkpoints", answer({"items": [], "next_cursor": None}))
    result = athanor("download", "job_1", "--checkpoint", "latest", "out")
    assert result.returncode == 4
    assert "has no checkpoint" in result.stderr


def test_a_checkpoint_of_another_step_is_refused(server, athanor, checkpoints) -> None:
    server.answers["POST /api/v1/checkpoints/ckp_20:download"] = server.answers[
        "POST /api/v1/checkpoints/ckp_10:download"
    ]
    result = athanor("download", "job_1", "--checkpoint", "latest", "out")
    assert result.returncode == 5
    assert "of another step" in " ".join(result.stderr.split())
    assert not (athanor.home / "out").exists()


def test_two_folders_are_refused(athanor, model) -> None:
    result = athanor("download", "job_1", "one", "--output", "two")
    assert result.returncode == 2
    assert "leave one out" in " ".join(result.stderr.split())
