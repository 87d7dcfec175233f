"""Models that users upload: a folder in Hugging Face's layout, encrypted file by file as it arrives, and registered.

A ModelImport is written first, with the id that the artifact gets. All objects of the upload are below its prefix, and
encrypted with its data key. The artifact and its version are written in the transaction that ends the upload: until
then there is no version. An upload that stops leaves its ModelImport, which `sweep` deletes with the objects and the
key. Keys, digests and places of the manifest are made here: no client sends any.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain

from django.db import IntegrityError, transaction
from django.db.models import Exists, OuterRef, QuerySet
from django.utils import timezone

from athanor.accounts.models import Team, User
from athanor.artifacts import deletion_hold, keys, registry, storage, usage
from athanor.artifacts.models import Artifact, ModelImport, ModelVersion
from athanor.artifacts.uploads import NewFile, blocks
from athanor.core import ids
from athanor.core.disks import require_space
from athanor.core.errors import Conflict, FieldProblem, Gone, Invalid
from athanor.quotas.selectors import path_of_team
from trainer.contract.encryption import Encryptor, authenticate
from trainer.contract.manifest import ModelManifest, StoredFile, StoredPart
from trainer.contract.model_folder import (
    MAX_FILES,
    MAX_TEXT_BYTES,
    READ_WHOLE,
    WEIGHTS,
    FolderFacts,
    Header,
    check_folder,
    check_name,
    header_size,
    read_header,
)

EXPIRES = timedelta(hours=24)  # an upload that takes longer is refused
SWEPT_AFTER = EXPIRES + timedelta(hours=1)  # longer than the last part and the registration take
MAX_PAGES = 100  # of 1,000 objects, in one sweep


@dataclass(frozen=True)
class Destination:
    """The name of the model that an import becomes a version of, an alias to point to it, and tags of the model."""

    name: str
    alias: str = ""
    tags: Sequence[str] = ()


def prefix_of(row: ModelImport) -> str:
    """Return the only prefix of the store to which an import writes."""
    return f"teams/{row.team_id}/models/{row.artifact_id}/"


def import_model(
    team: Team,
    user: User,
    destination: Destination,
    files: Iterable[NewFile],
    record: Callable[[ModelVersion], None] | None = None,
) -> ModelVersion:
    """Store the files of a model, and register them as the next version of the team's model of this name.

    Raise Invalid, with the file, for what is no complete model; Conflict if the team is at its storage limit, or if the
    upload took too long; Unavailable if a disk is full. After an error nothing is registered or stored.
    `record` is called with the version, in its transaction.
    """
    require_space()
    place = path_of_team(team)
    usage.check(place)
    row = ModelImport.objects.create(artifact_id=ids.artifact_id(), team=team, user=user)
    incoming = _Incoming(row, keys.encryptor(row.artifact_id, team))
    try:
        facts = incoming.take_all(files)
        _check_time(row)
        size = sum(part.size for part in incoming.parts)
        with transaction.atomic():
            usage.check(place, size)
            version = _register(row, destination, incoming, facts, size)
            if record:
                record(version)
        return version
    except BaseException as error:  # also if the client has left; what a killed process leaves is swept
        _discard(row, [part.key for part in incoming.parts])
        if isinstance(error, IntegrityError):
            raise Conflict(
                "import_repeated",
                "a request with the same Idempotency-Key was completed meanwhile",
                remedy="send the request again: it gets the answer of that one",
            ) from error
        raise


def _register(
    row: ModelImport, destination: Destination, incoming: "_Incoming", facts: FolderFacts, size: int
) -> ModelVersion:
    """Write the artifact and its version. Raise Gone for a deleted team."""
    if not Team.objects.select_for_update(no_key=True).filter(pk=row.team_id, deleted_at=None).exists():
        raise Gone("team_deleted", f"team {row.team.name} is deleted", remedy="import the model into another team")
    manifest = ModelManifest(
        job_id="",
        attempt_id="",
        step=0,
        num_parameters=facts.num_parameters,
        created_at=timezone.now(),
        files=incoming.files,
    )
    row.not_trainable = facts.not_trainable
    row.save(update_fields=["not_trainable"])
    artifact = Artifact.objects.create(
        id=row.artifact_id,
        kind=Artifact.Kind.MODEL,
        name=destination.name,
        step=0,
        size_bytes=size,
        manifest=authenticate(manifest, incoming.encryptor).model_dump(mode="json"),
    )
    assert row.user is not None, "it was created by one"
    return registry.register_import(row.team, artifact, destination.name, destination.alias, destination.tags, row.user)


def unfinished(now: datetime | None = None) -> QuerySet[ModelImport]:
    """Return the imports that stopped: without an artifact, and so old that none is registered any more."""
    rows = ModelImport.objects.filter(~Exists(Artifact.objects.filter(pk=OuterRef("pk"))), team__deleted_at=None)
    return rows.filter(created_at__lt=(now or timezone.now()) - SWEPT_AFTER)


@deletion_hold.unless_held
def sweep(now: datetime | None = None, limit: int = 20) -> int:
    """Delete the objects, keys and records of imports that stopped. Return how many. Safe to repeat and to run twice.

    The record goes last: a sweep that is killed begins again with it.
    """
    done = 0
    for row in unfinished(now).order_by("created_at")[:limit]:
        if _empty(prefix_of(row)):
            keys.destroy(row.pk)
            row.delete()
            done += 1
    return done


def _check_time(row: ModelImport) -> None:
    """Raise Conflict for an upload that takes too long: it would be swept."""
    if timezone.now() - row.created_at > EXPIRES:
        raise Conflict(
            "import_expired",
            f"the upload has taken longer than {EXPIRES}",
            remedy="import the model again over a faster connection",
        )


def _empty(prefix: str) -> bool:
    """Delete the objects below a prefix. Return whether none is left."""
    for _ in range(MAX_PAGES):
        page = storage.page(prefix)
        if not page.items:
            storage.abort_uploads(prefix, before=timezone.now() + timedelta(days=1))
            return True
        storage.delete([item.key for item in page.items])
    return False


def _discard(row: ModelImport, stored: list[str]) -> None:
    storage.delete(stored)
    keys.destroy(row.pk)
    ModelImport.objects.filter(pk=row.pk).delete()


@dataclass
class _Incoming:
    """The part of an upload that is already stored."""

    row: ModelImport
    encryptor: Encryptor
    parts: list[StoredPart] = field(default_factory=list)
    files: list[StoredFile] = field(default_factory=list)
    headers: dict[str, Header] = field(default_factory=dict)
    texts: dict[str, bytes] = field(default_factory=dict)

    def take_all(self, files: Iterable[NewFile]) -> FolderFacts:
        """Store the files. Raise Invalid for what is no complete model."""
        name = ""
        try:
            for file in files:
                name = file.name
                self._take(file)
            name = ""
            return check_folder([file.path for file in self.files], self.headers, self.texts)
        except ValueError as error:
            raise _refused(name, str(error)) from error

    def _take(self, file: NewFile) -> None:
        check_name(file.name)
        if any(known.path == file.name for known in self.files):
            raise ValueError(f"{file.name} is there twice; send each file once")
        if len(self.files) == MAX_FILES:
            raise ValueError(f"there are more than {MAX_FILES} files; leave those out that are no part of the model")
        first, digest, size, beginning = len(self.parts), hashlib.sha256(), 0, b""
        pieces = blocks(file.chunks)
        for block in chain([next(pieces, b"")], pieces):  # an empty file has one part too
            _check_time(self.row)
            if not size and file.name.endswith(WEIGHTS):
                header_size(file.name, block)
            if not size or file.name in READ_WHOLE:
                beginning += block
            size += len(block)
            if file.name in READ_WHOLE and size > MAX_TEXT_BYTES:
                raise ValueError(f"{file.name} is larger than {MAX_TEXT_BYTES} bytes; it is not the file of a model")
            digest.update(block)
            ciphertext, part = self.encryptor.encrypt(block, f"{prefix_of(self.row)}{len(self.parts):05d}")
            self.parts.append(part)
            storage.put(part.key, ciphertext)
        if file.name.endswith(WEIGHTS):
            self.headers[file.name] = read_header(file.name, beginning, size)
        elif file.name in READ_WHOLE:
            self.texts[file.name] = beginning
        self.files.append(StoredFile(path=file.name, parts=self.parts[first:], plaintext_sha256=digest.hexdigest()))


def _refused(name: str, detail: str) -> Invalid:
    problem = FieldProblem("/file", "invalid_model", detail)
    what = f"change {name}" if name else "change the folder"
    return Invalid("invalid_model", detail, remedy=f"{what}, then import it again", problems=(problem,))
