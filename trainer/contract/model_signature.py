"""Signatures of exported models in the OpenSSF Model Signing format with keys: made, and verified without a network.

`model.sig` is a Sigstore bundle: a DSSE envelope (https://github.com/secure-systems-lab/dsse) over an in-toto statement
of the predicate https://model_signing/signature/v1.0, which lists the SHA-256 of each file of the folder. The predicate
has one more field, `athanor`: what was exported, by which job. Other verifiers of the format ignore it.

A provenance (https://slsa.dev/spec/v1.0/provenance) is signed in the same way: its statement names the same files.
"""

import base64
import binascii
import hashlib
import json
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trainer.contract.manifest import Sha256

SIGNATURE_NAME = "model.sig"
MARKER_NAME = ".athanor-artifact"
"""File of a downloaded folder with the id of its artifact; no signature covers it."""
UNSIGNED = (SIGNATURE_NAME, MARKER_NAME)
"""The files that no signature covers. A folder or a link with such a name is refused as any other."""
BUNDLE_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://model_signing/signature/v1.0"
PROVENANCE_TYPE = "https://slsa.dev/provenance/v1"
MAX_SIGNATURE_BYTES = 64 * 2**20
PEM_BLOCK = re.compile(r"-----BEGIN ([A-Z ]+)-----.*?-----END \1-----", re.DOTALL)


class SignatureRefused(ValueError):
    """A signature or a folder that is refused. `problems`: further lines, one per file."""

    def __init__(self, message: str, problems: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.problems = problems


class _Read(BaseModel):
    """Part of a statement that others may have made: unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class ExportRecord(_Read):
    """What the platform records of the model that it signs. `job` and `attempt` are empty for an imported one."""

    team: str
    job: str
    attempt: str
    artifact: str
    step: int
    signed_at: str


class _Digest(_Read):
    sha256: Sha256


class _Subject(_Read):
    name: str
    digest: _Digest


class _Resource(_Read):
    name: str
    algorithm: Literal["sha256"]
    digest: Sha256


class _Serialization(_Read):
    method: Literal["files"]
    hash_type: Literal["sha256"]
    ignore_paths: list[str] = []


class _Predicate(_Read):
    serialization: _Serialization
    resources: list[_Resource]
    athanor: ExportRecord | None = None


class _Statement(_Read):
    type: Literal["https://in-toto.io/Statement/v1"] = Field(alias="_type")
    subject: list[_Subject] = Field(min_length=1, max_length=1)
    predicate_type: Literal["https://model_signing/signature/v1.0"] = Field(alias="predicateType")
    predicate: _Predicate


class _PublicKey(_Read):
    hint: str = ""


class _Material(_Read):
    public_key: _PublicKey = Field(alias="publicKey")


class _Signature(_Read):
    sig: str


class _Envelope(_Read):
    payload: str
    payload_type: Literal["application/vnd.in-toto+json"] = Field(alias="payloadType")
    signatures: list[_Signature] = Field(min_length=1, max_length=1)


class _Bundle(_Read):
    media_type: Literal["application/vnd.dev.sigstore.bundle.v0.3+json"] = Field(alias="mediaType")
    material: _Material = Field(alias="verificationMaterial")
    envelope: _Envelope = Field(alias="dsseEnvelope")


class _Provenance(_Read):
    type: Literal["https://in-toto.io/Statement/v1"] = Field(alias="_type")
    subject: list[_Subject] = Field(min_length=1)
    predicate_type: Literal["https://slsa.dev/provenance/v1"] = Field(alias="predicateType")
    predicate: dict[str, Any]


class SignedProvenance(BaseModel):
    """A provenance with a valid signature. `files`: SHA-256 by path; `fingerprint`: of the key."""

    model_config = ConfigDict(frozen=True)

    files: dict[str, str]
    fingerprint: str
    predicate: dict[str, Any]


class SignedModel(BaseModel):
    """What a valid signature says. `files`: SHA-256 by path; `fingerprint`: of the key; `record`: None if the platform
    did not make it."""

    model_config = ConfigDict(frozen=True)

    name: str
    files: dict[str, str]
    ignored: tuple[str, ...]
    fingerprint: str
    record: ExportRecord | None

    def __str__(self) -> str:
        """Return the identity of the model for messages."""
        if self.record is None:
            return f"model {self.name!r}"
        origin = f"step {self.record.step} of {self.record.job}" if self.record.job else "imported"
        return f"model {self.name!r} of team {self.record.team}: {origin} ({self.record.artifact})"


def new_private_key() -> str:
    """Return a new ECDSA P-256 private key, as PEM (PKCS 8)."""
    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


def public_half(private_key: str) -> str:
    """Return the public key of a private one, as PEM (SubjectPublicKeyInfo)."""
    return _pem(_load_private(private_key).public_key())


def fingerprint_of(public_key: str) -> str:
    """Return the SHA-256 of a public key in PEM: the `hint` of signatures, and what `sha256sum` prints of its file."""
    return hashlib.sha256(public_key.encode()).hexdigest()


def read_public_keys(text: str) -> dict[str, str]:
    """Return the ECDSA P-256 public keys of a PEM file by fingerprint. Raise SignatureRefused for anything else."""
    found = {}
    for block in PEM_BLOCK.finditer(text):
        if block[1] != "PUBLIC KEY":
            raise SignatureRefused(f"it contains a {block[1].lower()}: give the public key of the team")
        pem = _pem(_load_public(block[0]))
        found[fingerprint_of(pem)] = pem
    if not found:
        raise SignatureRefused("it contains no public key in PEM (-----BEGIN PUBLIC KEY-----)")
    return found


def sign(files: Mapping[str, str], name: str, record: ExportRecord, private_key: str) -> dict[str, Any]:
    """Return the bundle, as JSON, that signs a folder with these files: SHA-256 by path."""
    resources = [
        {"name": path, "algorithm": "sha256", "digest": files[path]} for path in sorted(files, key=PurePosixPath)
    ]
    return sign_statement(
        {
            "_type": STATEMENT_TYPE,
            "subject": [{"name": name, "digest": {"sha256": _root_digest(each["digest"] for each in resources)}}],
            "predicateType": PREDICATE_TYPE,
            "predicate": {
                "serialization": {
                    "method": "files",
                    "hash_type": "sha256",
                    "allow_symlinks": False,
                    "ignore_paths": [SIGNATURE_NAME, MARKER_NAME],
                },
                "resources": resources,
                "athanor": record.model_dump(),
            },
        },
        private_key,
    )


def provenance(files: Mapping[str, str], predicate: Mapping[str, Any]) -> dict[str, Any]:
    """Return the in-toto statement with a SLSA provenance of these files: SHA-256 by path."""
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": path, "digest": {"sha256": files[path]}} for path in sorted(files, key=PurePosixPath)],
        "predicateType": PROVENANCE_TYPE,
        "predicate": predicate,
    }


def sign_statement(statement: Mapping[str, Any], private_key: str) -> dict[str, Any]:
    """Return the bundle, as JSON, that signs an in-toto statement."""
    payload = json.dumps(statement).encode()
    key = _load_private(private_key)
    signature = key.sign(_signed_bytes(payload), ec.ECDSA(hashes.SHA256()))
    return {
        "mediaType": BUNDLE_TYPE,
        "verificationMaterial": {
            "publicKey": {"hint": fingerprint_of(_pem(key.public_key()))},
            "tlogEntries": [],
        },
        "dsseEnvelope": {
            "payload": base64.b64encode(payload).decode(),
            "payloadType": PAYLOAD_TYPE,
            "signatures": [{"sig": base64.b64encode(signature).decode(), "keyid": ""}],
        },
    }


def read_signature(content: bytes, keys: Mapping[str, str], revoked: Mapping[str, str]) -> SignedModel:
    """Return what a signature says, if one of `keys` (PEM by fingerprint) made it.

    `revoked`: why each revoked key is, by fingerprint. Raise SignatureRefused.
    """
    payload, maker = _signed_payload(content, keys, revoked, "a signature of a model")
    try:
        statement = _Statement.model_validate(json.loads(payload))
    except (ValueError, RecursionError) as error:
        raise SignatureRefused(f"it signs something other than a model: {_reason(error)}") from error
    predicate, subject = statement.predicate, statement.subject[0]
    if _root_digest(each.digest for each in predicate.resources) != subject.digest.sha256:
        raise SignatureRefused("its digest of the model is not that of the files that it lists")
    return SignedModel(
        name=subject.name,
        files={each.name: each.digest for each in predicate.resources},
        ignored=tuple(predicate.serialization.ignore_paths),
        fingerprint=maker,
        record=predicate.athanor,
    )


def read_provenance(content: bytes, keys: Mapping[str, str], revoked: Mapping[str, str]) -> SignedProvenance:
    """Return a signed SLSA provenance, if one of `keys` (PEM by fingerprint) signed it. Raise SignatureRefused."""
    payload, maker = _signed_payload(content, keys, revoked, "a signed provenance")
    try:
        statement = _Provenance.model_validate(json.loads(payload))
    except (ValueError, RecursionError) as error:
        raise SignatureRefused(f"it signs something other than a provenance: {_reason(error)}") from error
    files = {each.name: each.digest.sha256 for each in statement.subject}
    return SignedProvenance(files=files, fingerprint=maker, predicate=statement.predicate)


def _signed_payload(
    content: bytes, keys: Mapping[str, str], revoked: Mapping[str, str], what: str
) -> tuple[bytes, str]:
    """Return the payload of a bundle, and the fingerprint of the key that signed it. Raise SignatureRefused."""
    try:
        bundle = _Bundle.model_validate(json.loads(content))
        payload = base64.b64decode(bundle.envelope.payload, validate=True)
        signature = base64.b64decode(bundle.envelope.signatures[0].sig, validate=True)
    except (ValueError, RecursionError) as error:
        raise SignatureRefused(f"it is not {what}: {_reason(error)}") from error
    hint = bundle.material.public_key.hint
    if hint in revoked:
        raise _revoked(hint, revoked)
    if hint and hint not in keys:
        raise SignatureRefused(f"it names the key {hint}, which is not among the given ones: {', '.join(keys)}")
    candidates = [hint] if hint else list(keys)
    maker = next((each for each in candidates if _is_by(keys[each], signature, payload)), None)
    if maker is None:
        raise SignatureRefused(f"it was changed after it was signed, or not made by the key {', '.join(candidates)}")
    if maker in revoked:
        raise _revoked(maker, revoked)
    return payload, maker


def verify_folder(folder: Path, keys: Mapping[str, str], revoked: Mapping[str, str]) -> SignedModel:
    """Verify the signature of a folder, and that the folder contains exactly the signed files. Return what was signed.

    Raise SignatureRefused that names each altered, missing and extra file.
    """
    path = folder / SIGNATURE_NAME
    if path.is_symlink() or not path.is_file():
        raise SignatureRefused(f"{folder} has no signature: there is no file {SIGNATURE_NAME} in it")
    if path.stat().st_size > MAX_SIGNATURE_BYTES:
        raise SignatureRefused(f"{path} has more than {MAX_SIGNATURE_BYTES} bytes: it is not a signature of a model")
    try:
        signed = read_signature(path.read_bytes(), keys, revoked)
    except SignatureRefused as refused:
        raise SignatureRefused(f"{path} is refused: {refused}") from refused
    ignored = {PurePosixPath(each) for each in signed.ignored if each not in UNSIGNED}
    problems = list(_differences(folder, signed.files, ignored))
    if problems:
        raise SignatureRefused(f"{folder} is not what was signed, {signed}", tuple(problems))
    return signed


def _differences(folder: Path, expected: Mapping[str, str], ignored: set[PurePosixPath]) -> Iterator[str]:
    """Yield a line for each entry that is not as it was signed."""
    found = set()
    for path in _entries(folder, ignored):
        name = path.relative_to(folder).as_posix()
        found.add(name)
        if not stat.S_ISREG(path.lstat().st_mode):
            yield f"{name} is not a file but a link or a special file, which no signature covers"
        elif name not in expected:
            yield f"{name} was not signed: remove it if it is yours"
        else:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            if digest != expected[name]:
                yield f"{name} was altered: its SHA-256 is {digest}, the signed one is {expected[name]}"
    for name in sorted(expected.keys() - found):
        yield f"{name} is missing; its signed SHA-256 is {expected[name]}"


def _entries(folder: Path, ignored: set[PurePosixPath]) -> Iterator[Path]:
    """Yield all that is below the folder but folders, UNSIGNED files and what is ignored. Links are not followed."""
    for path in sorted(folder.iterdir()):
        if path.name not in UNSIGNED or not stat.S_ISREG(path.lstat().st_mode):
            yield from _entries_of(folder, path, ignored)


def _entries_of(root: Path, path: Path, ignored: set[PurePosixPath]) -> Iterator[Path]:
    if PurePosixPath(path.relative_to(root).as_posix()) in ignored:
        return
    if path.is_symlink() or not path.is_dir():
        yield path
        return
    for each in sorted(path.iterdir()):
        yield from _entries_of(root, each, ignored)


def _signed_bytes(payload: bytes) -> bytes:
    """Return the pre-authentication encoding of DSSE, which is what is signed."""
    return f"DSSEv1 {len(PAYLOAD_TYPE)} {PAYLOAD_TYPE} {len(payload)} ".encode() + payload


def _root_digest(digests: Iterator[str]) -> str:
    """Return the digest of the model: the SHA-256 of its files' digests, joined in the order of the list."""
    return hashlib.sha256(b"".join(bytes.fromhex(each) for each in digests)).hexdigest()


def _is_by(public_key: str, signature: bytes, payload: bytes) -> bool:
    try:
        _load_public(public_key).verify(signature, _signed_bytes(payload), ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


def _revoked(fingerprint: str, revoked: Mapping[str, str]) -> SignatureRefused:
    return SignatureRefused(f"it was made by the key {fingerprint}, which is revoked: {revoked[fingerprint]}")


def _load_public(pem: str) -> ec.EllipticCurvePublicKey:
    try:
        key = serialization.load_pem_public_key(pem.encode())
    except ValueError as error:
        raise SignatureRefused("it contains a public key that cannot be read") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise SignatureRefused("it contains a public key of another kind: signing keys are of ECDSA P-256")
    return key


def _load_private(pem: str) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(pem.encode(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey), "new_private_key makes these"
    return key


def _pem(key: ec.EllipticCurvePublicKey) -> str:
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo).decode()


def _reason(error: Exception) -> str:
    """Return why something cannot be read, in one line."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc'])) or 'content'}: {first['msg']}"
    if isinstance(error, binascii.Error):
        return f"its base64 cannot be read ({error})"
    return f"its JSON cannot be read ({error})"
