"""Signatures of exported models: what an attacker changes is found and named; the format is that of `model_signing`."""

import base64
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from trainer.contract.model_signature import (
    MARKER_NAME,
    SIGNATURE_NAME,
    ExportRecord,
    SignatureRefused,
    fingerprint_of,
    new_private_key,
    public_half,
    read_public_keys,
    sign,
    verify_folder,
)

FILES = {"config.json": b"{}", "tokenizer.json": b"[]", "weights/model.safetensors": bytes(range(256)) * 10}
KEY, OTHER_KEY = new_private_key(), new_private_key()
KEYS = read_public_keys(public_half(KEY))


def signed_folder(folder: Path, private_key: str, artifact: str = "art_1", name: str = "tiny") -> Path:
    """Write a model with its signature."""
    for path, content in FILES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    (folder / MARKER_NAME).write_text(artifact)
    write_signature(folder, private_key, artifact, name)
    return folder


def write_signature(folder: Path, private_key: str, artifact: str, name: str, extra: bytes = b"") -> None:
    record = ExportRecord(
        team="red", job="job_1", attempt="att_1", artifact=artifact, step=5, signed_at="2026-01-02T03:04:05+00:00"
    )
    digests = {path: hashlib.sha256(content + extra).hexdigest() for path, content in FILES.items()}
    (folder / SIGNATURE_NAME).write_text(json.dumps(sign(digests, name, record, private_key)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return signed_folder(tmp_path / "model", KEY)


def refusal(folder: Path, keys: dict[str, str] = KEYS, revoked: dict[str, str] | None = None) -> str:
    with pytest.raises(SignatureRefused) as refused:
        verify_folder(folder, keys, revoked or {})
    return "\n".join([str(refused.value), *refused.value.problems])


def test_a_folder_as_it_was_signed_is_accepted(folder: Path) -> None:
    signed = verify_folder(folder, KEYS, {})
    assert signed.files == {path: hashlib.sha256(content).hexdigest() for path, content in FILES.items()}
    assert [signed.fingerprint] == list(KEYS)
    (folder / MARKER_NAME).unlink()
    assert verify_folder(folder, KEYS | read_public_keys(public_half(OTHER_KEY)), {}) == signed


def test_an_altered_byte_is_named_with_both_digests(folder: Path) -> None:
    path = folder / "weights/model.safetensors"
    before, after = path.read_bytes(), b"\xff" + path.read_bytes()[1:]
    path.write_bytes(after)
    message = refusal(folder)
    assert "weights/model.safetensors was altered" in message
    assert hashlib.sha256(before).hexdigest() in message
    assert hashlib.sha256(after).hexdigest() in message


def swap_names(folder: Path) -> None:
    (folder / "config.json").rename(folder / "x")
    (folder / "tokenizer.json").rename(folder / "config.json")
    (folder / "x").rename(folder / "tokenizer.json")


def add_file(folder: Path) -> None:
    (folder / "weights" / "modeling.py").write_text("import os")


def add_hidden_file(folder: Path) -> None:
    (folder / ".git").mkdir()
    (folder / ".git" / "hook").write_text("#!/bin/sh")


def remove_file(folder: Path) -> None:
    (folder / "config.json").unlink()


def link_file(folder: Path) -> None:
    """Replace a file by a link to one with the same content, which can be altered after it was verified."""
    shutil.move(folder / "config.json", folder.parent / "elsewhere.json")
    (folder / "config.json").symlink_to(folder.parent / "elsewhere.json")


def link_folder(folder: Path) -> None:
    shutil.move(folder / "weights", folder.parent / "elsewhere")
    (folder / "weights").symlink_to(folder.parent / "elsewhere")


def hide_files(folder: Path) -> None:
    """Put files below a folder that has the name of the file that no signature covers."""
    (folder / MARKER_NAME).unlink()
    (folder / MARKER_NAME / "code").mkdir(parents=True)
    (folder / MARKER_NAME / "code" / "run.py").write_text("import os")


def link_unsigned_file(folder: Path) -> None:
    (folder / MARKER_NAME).unlink()
    (folder / MARKER_NAME).symlink_to(folder.parent)


def add_pipe(folder: Path) -> None:
    os.mkfifo(folder / "pipe")


@pytest.mark.parametrize(
    ("attack", "expected"),
    [
        (swap_names, ["config.json was altered", "tokenizer.json was altered"]),
        (add_file, ["weights/modeling.py was not signed"]),
        (add_hidden_file, [".git/hook was not signed"]),
        (remove_file, ["config.json is missing"]),
        (link_file, ["config.json is not a file but a link"]),
        (link_folder, ["weights is not a file but a link", "weights/model.safetensors is missing"]),
        (hide_files, [f"{MARKER_NAME}/code/run.py was not signed"]),
        (link_unsigned_file, [f"{MARKER_NAME} is not a file but a link"]),
        (add_pipe, ["pipe is not a file but a link or a special file"]),
    ],
)
def test_what_differs_from_the_signed_folder_is_named(
    folder: Path, attack: Callable[[Path], None], expected: list[str]
) -> None:
    attack(folder)
    message = refusal(folder)
    assert [text for text in expected if text not in message] == []
    assert len(message.splitlines()) == 1 + len(expected)


def test_the_signature_of_another_model_is_named_by_its_model(folder: Path) -> None:
    write_signature(folder, KEY, "art_2", "larger", extra=b"x")
    message = refusal(folder)
    assert "model 'larger' of team red: step 5 of job_1 (art_2)" in message
    assert "config.json was altered" in message


def test_another_key_and_a_revoked_one_are_refused(folder: Path) -> None:
    theirs = read_public_keys(public_half(OTHER_KEY))
    assert f"names the key {next(iter(KEYS))}, which is not among the given ones" in refusal(folder, theirs)
    assert "revoked: it leaked" in refusal(folder, KEYS, {next(iter(KEYS)): "it leaked"})


def test_a_key_named_falsely_is_found_by_the_signature(folder: Path) -> None:
    """The name of the key is not signed: an attacker can write that of a trusted key, or none."""
    write_signature(folder, OTHER_KEY, "art_1", "tiny")
    bundle = json.loads((folder / SIGNATURE_NAME).read_text())
    both = KEYS | read_public_keys(public_half(OTHER_KEY))
    revoked = {fingerprint_of(public_half(OTHER_KEY)): "it leaked"}
    for hint in (next(iter(KEYS)), ""):
        bundle["verificationMaterial"]["publicKey"]["hint"] = hint
        (folder / SIGNATURE_NAME).write_text(json.dumps(bundle))
        assert "not made by the key" in refusal(folder)
    assert "revoked: it leaked" in refusal(folder, both, revoked), "a revoked key that is not named"


def change_payload(bundle: dict[str, Any]) -> None:
    payload = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
    payload["predicate"]["resources"][0]["digest"] = "0" * 64
    bundle["dsseEnvelope"]["payload"] = base64.b64encode(json.dumps(payload).encode()).decode()


def change_payload_type(bundle: dict[str, Any]) -> None:
    bundle["dsseEnvelope"]["payloadType"] = "application/json"


def change_signature(bundle: dict[str, Any]) -> None:
    bundle["dsseEnvelope"]["signatures"][0]["sig"] = base64.b64encode(b"no ASN.1").decode()


def break_base64(bundle: dict[str, Any]) -> None:
    bundle["dsseEnvelope"]["payload"] += "*"


def without_signatures(bundle: dict[str, Any]) -> None:
    bundle["dsseEnvelope"]["signatures"] = []


def older_media_type(bundle: dict[str, Any]) -> None:
    bundle["mediaType"] = "application/vnd.dev.sigstore.bundle+json;version=0.1"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (change_payload, "changed after it was signed"),
        (change_signature, "changed after it was signed"),
        (change_payload_type, "dsseEnvelope.payloadType"),
        (break_base64, "base64"),
        (without_signatures, "dsseEnvelope.signatures"),
        (older_media_type, "mediaType"),
    ],
)
def test_a_changed_bundle_is_refused(folder: Path, change: Callable[[dict[str, Any]], None], expected: str) -> None:
    bundle = json.loads((folder / SIGNATURE_NAME).read_text())
    change(bundle)
    (folder / SIGNATURE_NAME).write_text(json.dumps(bundle))
    assert expected in refusal(folder)


@pytest.mark.parametrize("content", ["cut", "", "[]", "null", "[" * 100_000, '"\\ud800"', "\ufeff{}"])
def test_what_is_not_a_signature_is_refused(folder: Path, content: str) -> None:
    path = folder / SIGNATURE_NAME
    path.write_text(path.read_text()[:-40] if content == "cut" else content)
    assert "it is not a signature of a model" in refusal(folder)


def test_a_folder_without_a_signature_and_one_with_a_linked_signature_are_refused(folder: Path) -> None:
    shutil.move(folder / SIGNATURE_NAME, folder.parent / "elsewhere.sig")
    assert "has no signature" in refusal(folder)
    (folder / SIGNATURE_NAME).symlink_to(folder.parent / "elsewhere.sig")
    assert "has no signature" in refusal(folder)


def test_a_statement_of_something_else_by_the_same_key_is_refused(folder: Path) -> None:
    """A team's key may sign other things one day; their statements must not pass for a model."""
    record = ExportRecord(team="red", job="job_1", attempt="att_1", artifact="art_1", step=5, signed_at="now")
    bundle = sign({"config.json": "1" * 64}, "tiny", record, KEY)
    payload = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
    payload["predicateType"] = "https://slsa.dev/provenance/v1"
    resign(bundle, payload)
    (folder / SIGNATURE_NAME).write_text(json.dumps(bundle))
    assert "signs something other than a model" in refusal(folder)
    payload["predicateType"] = "https://model_signing/signature/v1.0"
    payload["subject"][0]["digest"]["sha256"] = "0" * 64
    resign(bundle, payload)
    (folder / SIGNATURE_NAME).write_text(json.dumps(bundle))
    assert "is not that of the files that it lists" in refusal(folder)


def resign(bundle: dict[str, Any], payload: dict[str, Any]) -> None:
    content = json.dumps(payload).encode()
    key = serialization.load_pem_private_key(KEY.encode(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    kind = "application/vnd.in-toto+json"
    signed = f"DSSEv1 {len(kind)} {kind} {len(content)} ".encode() + content
    bundle["dsseEnvelope"]["payload"] = base64.b64encode(content).decode()
    bundle["dsseEnvelope"]["signatures"][0]["sig"] = base64.b64encode(
        key.sign(signed, ec.ECDSA(hashes.SHA256()))
    ).decode()


def test_the_reference_verifier_accepts_the_signature_and_refuses_what_was_altered(folder: Path) -> None:
    verifying = pytest.importorskip("model_signing.verifying", reason="pip install model-signing pyOpenSSL")
    key = folder.parent / "team.pub.pem"
    key.write_text(public_half(KEY))

    def verify() -> None:
        verifying.Config().use_elliptic_key_verifier(public_key=key).verify(folder, folder / SIGNATURE_NAME)

    verify()
    (folder / "config.json").write_text("[]")
    with pytest.raises(ValueError, match="Hash mismatch for 'config.json'"):
        verify()


def test_a_signature_by_the_reference_signer_is_accepted_and_what_was_altered_refused(folder: Path) -> None:
    signing = pytest.importorskip("model_signing.signing", reason="pip install model-signing pyOpenSSL")
    hashing = pytest.importorskip("model_signing.hashing", reason="pip install model-signing pyOpenSSL")
    key = folder.parent / "key.pem"
    key.write_text(OTHER_KEY)
    (folder / SIGNATURE_NAME).unlink()
    config = signing.Config().use_elliptic_key_signer(private_key=key)
    ignored = hashing.Config().set_ignored_paths(paths=[folder / SIGNATURE_NAME, folder / MARKER_NAME])
    config.set_hashing_config(ignored).sign(folder, folder / SIGNATURE_NAME)
    theirs = read_public_keys(public_half(OTHER_KEY))
    signed = verify_folder(folder, theirs, {})
    assert (set(signed.files), signed.name, signed.record) == (set(FILES), folder.name, None)
    (folder / "config.json").write_text("[]")
    assert "config.json was altered" in refusal(folder, theirs)
