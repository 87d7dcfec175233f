"""What a backup consists of: its manifest, the list of its objects, and its encrypted files.

The backup has a data key, wrapped by the master key. All that comes from the database is encrypted with it, and the
manifest carries its tag, so nobody without the master key can read, change or replace a part of a backup.
"""

import base64
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

import zstandard
from pydantic import Field, TypeAdapter, ValidationError, field_validator, model_validator

from athanor.backups.destination import Destination
from athanor.core import encryption
from athanor.core.errors import Invalid, Misconfigured
from trainer.contract.base import Count32, Count64, WireModel
from trainer.contract.encryption import DecryptionError, Encryptor, authenticate, check_manifest, new_keyset
from trainer.contract.manifest import MANIFEST_NAME, PART_PLAINTEXT_BYTES, Manifest, Sha256, StoredFile, StoredPart

FORMAT = 1
BACKUPS, OBJECTS = "backups", "objects"
OBJECT_LIST = "objects.jsonl.zst"
BackupId = Annotated[str, Field(pattern=r"^bkp_[0-9A-Z]{26}$")]
Identifier = Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_]{0,62}$")]
READ_BYTES = 2**20


class StoredObject(WireModel):
    """An object of the platform's bucket."""

    key: Annotated[str, Field(pattern=r"^(jobs|teams)/.+$", max_length=1024)]
    size: Count64
    sha256: Sha256

    @field_validator("key")
    @classmethod
    def _stays_below(cls, key: str) -> str:
        if any(piece in ("", ".", "..") for piece in key.split("/")):
            raise ValueError(f"{key!r} must not have empty, . or .. pieces")
        return key

    @property
    def name(self) -> str:
        """Return the name of its copy."""
        return f"{OBJECTS}/{self.sha256[:2]}/{self.sha256}"


class MissingObject(WireModel):
    """An object that the database refers to and that could not be copied, and why."""

    key: str
    problem: str


class Table(WireModel):
    """The rows of a table: PostgreSQL's text format of COPY, compressed, in the file `path`."""

    name: Identifier
    columns: list[Identifier]
    rows: Count64
    path: str


class BackupManifest(Manifest):
    """A complete backup. `migrations` are those of its database, as (app, name); `sequences` their next values."""

    kind: Literal["backup"] = "backup"
    format: Count32 = FORMAT
    id: BackupId
    created_at: datetime
    version: str
    wrapped_key: str
    migrations: list[tuple[str, str]]
    tables: list[Table]
    sequences: dict[Identifier, Count64]
    num_objects: Count64
    object_bytes: Count64
    missing: list[MissingObject] = []
    files: list[StoredFile]

    @model_validator(mode="after")
    def _has_its_own_files(self) -> "BackupManifest":
        for file in self.files:
            for number, part in enumerate(file.parts):
                if part.key != _part_name(self.id, file.path, number):
                    raise ValueError(f"{part.key!r} is not part {number} of {file.path} of {self.id}")
        return self

    def file(self, path: str) -> StoredFile:
        """Return the file of a path."""
        return next(file for file in self.files if file.path == path)


@dataclass(frozen=True)
class OpenBackup:
    """A backup with an authentic manifest, and the cipher of its files."""

    place: Destination
    manifest: BackupManifest
    encryptor: Encryptor

    def read(self, file: StoredFile) -> Iterator[bytes]:
        """Yield the content of a file. Raise DecryptionError for a part that is missing or damaged."""
        decompressor = zstandard.ZstdDecompressor().decompressobj()
        for part in file.parts:
            content = self.place.read(part.key)
            if content is None:
                raise DecryptionError(f"{part.key} is missing")
            compressed = self.encryptor.decrypt(content, part)
            for start in range(0, len(compressed), READ_BYTES):
                yield decompressor.decompress(compressed[start : start + READ_BYTES])

    def objects(self) -> Iterator[StoredObject]:
        """Yield the objects, in the order of their keys."""
        rest = b""
        for content in self.read(self.manifest.file(OBJECT_LIST)):
            *lines, rest = (rest + content).split(b"\n")
            yield from (StoredObject.model_validate_json(line) for line in lines)


class FileWriter:
    """Compress, encrypt and write one file of a backup, part by part."""

    def __init__(self, place: Destination, encryptor: Encryptor, backup_id: str, path: str) -> None:
        """`path`: of the file within the backup."""
        self._place, self._encryptor = place, encryptor
        self._backup_id, self._path = backup_id, path
        self._compressor = zstandard.ZstdCompressor().compressobj()
        self._waiting = bytearray()
        self._parts: list[StoredPart] = []

    def write(self, content: bytes) -> None:
        """Add content to the file."""
        self._waiting += self._compressor.compress(content)
        while len(self._waiting) >= PART_PLAINTEXT_BYTES:
            self._store(PART_PLAINTEXT_BYTES)

    def close(self) -> StoredFile:
        """Write what is left, and return the record of the file."""
        self._waiting += self._compressor.flush()
        self._store(len(self._waiting))
        return StoredFile(path=self._path, parts=self._parts)

    def _store(self, size: int) -> None:
        key = _part_name(self._backup_id, self._path, len(self._parts))
        ciphertext, part = self._encryptor.encrypt(bytes(self._waiting[:size]), key)
        del self._waiting[:size]
        self._place.write(key, ciphertext)
        self._parts.append(part)


def new_key(backup_id: str) -> tuple[str, Encryptor]:
    """Return the wrapped data key of a new backup, as text, and its cipher."""
    keyset = new_keyset()
    return base64.b64encode(encryption.wrap_by_master(keyset, _owner(backup_id))).decode(), Encryptor(keyset)


def write_objects(writer: FileWriter, objects: Iterable[StoredObject]) -> StoredFile:
    """Write the list of objects."""
    for each in objects:
        writer.write(each.model_dump_json().encode() + b"\n")
    return writer.close()


def write_manifest(place: Destination, manifest: BackupManifest, encryptor: Encryptor) -> None:
    """Write the manifest with its tag: from now on the backup exists."""
    tagged = authenticate(manifest, encryptor)
    place.write(manifest_name(manifest.id), tagged.model_dump_json(indent=1).encode())


def ids_of(place: Destination) -> list[str]:
    """Return the ids of the complete backups of a place, oldest first."""
    names = (name.split("/") for name in place.sizes(BACKUPS))
    return sorted(pieces[1] for pieces in names if len(pieces) == 3 and pieces[2] == MANIFEST_NAME)


def open_backup(place: Destination, backup_id: str = "") -> OpenBackup:
    """Open a backup, the newest one without an id.

    Raise Misconfigured for another master key, and Invalid without a backup, and for a manifest that was changed or
    that a newer version wrote.
    """
    known = ids_of(place)
    if not known:
        raise Invalid(
            "no_backup",
            "there is no complete backup at this place",
            remedy="check the address; `manage.py backup` makes one",
        )
    if backup_id and backup_id not in known:
        raise Invalid(
            "no_such_backup",
            f"there is no complete backup {backup_id} at this place",
            remedy=f"choose one of {', '.join(known)}",
        )
    chosen = backup_id or known[-1]
    name = manifest_name(chosen)
    manifest = _parsed(name, place.read(name) or b"")
    encryptor = _encryptor(manifest)
    try:
        check_manifest(manifest, encryptor, id=chosen)
    except DecryptionError as error:
        raise Invalid(
            "backup_not_authentic", f"{name}: {error}", remedy="use another copy of this backup, or another backup"
        ) from error
    return OpenBackup(place, manifest, encryptor)


def _parsed(name: str, content: bytes) -> BackupManifest:
    try:
        number = TypeAdapter(int).validate_python(json.loads(content).get("format", FORMAT))
        if number > FORMAT:
            raise Invalid(
                "newer_backup",
                f"{name} has the format {number}, and this version reads formats up to {FORMAT}",
                remedy="use the version of the platform that wrote it, or a newer one",
            )
        return BackupManifest.model_validate_json(content)
    except (ValidationError, ValueError, AttributeError) as error:
        first = str(error).splitlines()[0]
        raise Invalid(
            "backup_not_readable", f"{name} is not the manifest of a backup: {first}", remedy="use another backup"
        ) from error


def _encryptor(manifest: BackupManifest) -> Encryptor:
    try:
        wrapped = base64.b64decode(manifest.wrapped_key)
        return Encryptor(encryption.unwrap_by_master(wrapped, _owner(manifest.id)))
    except (Misconfigured, ValueError) as error:
        raise Misconfigured(
            "wrong_master_key",
            f"{manifest.id} cannot be opened with this master key: another installation made it, the master key was "
            "replaced since, or its manifest was changed",
            remedy="set ATHANOR_MASTER_KEY to the master key of the installation at the time of the backup",
        ) from error


def manifest_name(backup_id: str) -> str:
    """Return the name of a backup's manifest."""
    return f"{BACKUPS}/{backup_id}/{MANIFEST_NAME}"


def _part_name(backup_id: str, path: str, number: int) -> str:
    return f"{BACKUPS}/{backup_id}/{path}.{number:05d}"


def _owner(backup_id: str) -> str:
    return f"backup {backup_id}"
