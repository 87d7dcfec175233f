"""New data sets: files encrypted part by part as they arrive, each checked to be usable for training.

The content is not interpreted beyond that: text is UTF-8, a line of JSONL a JSON object, parquet begins and ends as
parquet does. Jobs read the rest.
"""

import codecs
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from django.db import IntegrityError, transaction

from athanor.accounts import audit
from athanor.accounts.models import Team, User
from athanor.artifacts import keys, storage, usage
from athanor.artifacts.models import Dataset
from athanor.core import ids
from athanor.core.disks import require_space
from athanor.core.errors import Conflict, Invalid
from athanor.quotas.selectors import path_of_team
from trainer.contract.encryption import Encryptor, authenticate
from trainer.contract.manifest import PART_PLAINTEXT_BYTES, StoredFile, StoredPart, UploadManifest

SUFFIXES = {"text": (".txt",), "jsonl": (".jsonl", ".ndjson"), "parquet": (".parquet", ".pq")}
FORMATS = tuple(SUFFIXES)
MAX_FILES = 10_000
PARQUET_MAGIC = b"PAR1"


@dataclass(frozen=True)
class NewFile:
    """A file to upload. `name` is used in errors. Its chunks can be read once, before the next file's."""

    name: str
    format: str
    chunks: Iterable[bytes]


def format_of(name: str) -> str:
    """Return the format by the file's extension; text for unknown extensions."""
    return next((form for form, endings in SUFFIXES.items() if name.lower().endswith(endings)), "text")


def upload(
    team: Team, user: User, name: str, files: Iterable[NewFile], record: Callable[[Dataset], None] | None = None
) -> Dataset:
    """Store files as one data set.

    Raise Invalid for no file, and, with the place, for one that is empty or does not have its format; Conflict if the
    team is at its storage limit; Unavailable if a disk is full. A refused upload leaves only unnamed objects, which are
    deleted. `record` is called with the new row, in its transaction.
    """
    require_space()
    if Dataset.objects.filter(team=team, name=name).exists():
        raise _taken(name)
    place = path_of_team(team)
    usage.check(place)
    identifier = ids.dataset_id()
    encryptor = keys.encryptor(identifier, team)
    incoming = _Incoming(encryptor, f"teams/{team.id}/datasets/{identifier}/raw")
    try:
        incoming.take_all(files)
        size = sum(part.plaintext_size for part in incoming.parts)
        with transaction.atomic():
            usage.check(place, size)
            _check_team_exists(team)
            row = Dataset.objects.create(
                id=identifier,
                team=team,
                name=name,
                origin=Dataset.Origin.SEALED,
                format=incoming.format,
                size_bytes=size,
                documents=incoming.documents,
                files=[file.model_dump() for file in incoming.files],
                tag=authenticate(UploadManifest(dataset_id=identifier, files=incoming.files), encryptor).tag,
                created_by=user,
            )
            facts = {"name": name, "size_bytes": row.size_bytes, "files": len(incoming.files)}
            audit.record("dataset.upload", actor=user, target=("dataset", row.id), team_id=team.id, after=facts)
            if record:
                record(row)
            return row
    except (Invalid, Conflict, IntegrityError) as error:
        storage.delete([part.key for part in incoming.parts])
        if isinstance(error, IntegrityError):
            raise _taken(name) from error
        raise


def _check_team_exists(team: Team) -> None:
    """Raise Conflict for a team that was deleted since the upload began, and lock it against deletion."""
    if not Team.objects.select_for_update(no_key=True).filter(pk=team.pk, deleted_at=None).exists():
        raise Conflict("team_deleted", f"team {team.name} is deleted", remedy="upload to another team")


class _Incoming:
    """The part of an upload that is already stored."""

    def __init__(self, encryptor: Encryptor, prefix: str) -> None:
        self._encryptor, self._prefix = encryptor, prefix
        self._formats: set[str] = set()
        self.parts: list[StoredPart] = []
        self.files: list[StoredFile] = []
        self.documents: int | None = None

    @property
    def format(self) -> str:
        """Return the format of all files; auto if each has that of its name."""
        return next(iter(self._formats)) if len(self._formats) == 1 else "auto"

    def take_all(self, files: Iterable[NewFile]) -> None:
        for file in files:
            self._take(file)
        if not self.files:
            raise Invalid("invalid_dataset", "the upload holds no file", remedy="upload one at least")

    def _take(self, file: NewFile) -> None:
        path = _stored_name(file)
        if len(self.files) == MAX_FILES:
            raise Invalid("invalid_dataset", f"more than {MAX_FILES} files", remedy="join them, or make several sets")
        if any(known.path == path for known in self.files):
            raise Invalid("invalid_dataset", f"two files would be stored as {path}", remedy="rename one")
        check = CHECKS[file.format](file.name)
        first = len(self.parts)
        for block in _blocks(file.chunks):
            check.feed(block)
            ciphertext, part = self._encryptor.encrypt(block, f"{self._prefix}-{len(self.parts):05d}")
            self.parts.append(part)
            storage.put(part.key, ciphertext)
        check.finish()
        self._formats.add(file.format)
        self.files.append(StoredFile(path=path, parts=self.parts[first:]))
        if check.documents is not None:
            self.documents = (self.documents or 0) + check.documents


class _TextCheck:
    """Checks that a file is not empty and is UTF-8, also across blocks."""

    def __init__(self, name: str) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._name = name
        self._seen = 0
        self._has_text = False
        self.documents: int | None = None

    def feed(self, block: bytes) -> None:
        pending = len(self._decoder.getstate()[0])
        try:
            text = self._decoder.decode(block)
        except UnicodeDecodeError as error:
            raise self._not_utf8(self._seen - pending + error.start) from error
        self._seen += len(block)
        self._has_text = self._has_text or bool(text.strip())

    def finish(self) -> None:
        try:
            self._decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            raise self._not_utf8(self._seen - len(error.object)) from error
        if not self._has_text:
            raise self._refused("holds no text", "upload a file that is not empty")

    def _not_utf8(self, position: int) -> Invalid:
        return self._refused(f"byte {position} is not UTF-8", "convert it, for example: iconv -t UTF-8")

    def _refused(self, what: str, remedy: str) -> Invalid:
        return Invalid("invalid_dataset", f"{self._name}: {what}", remedy=remedy)


class _JsonlCheck(_TextCheck):
    """Checks that each line that is not blank is a JSON object."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._rest = b""
        self._line = 0
        self.documents = 0

    def feed(self, block: bytes) -> None:
        super().feed(block)
        *lines, self._rest = (self._rest + block).split(b"\n")
        for line in lines:
            self._check(line)

    def finish(self) -> None:
        super().finish()
        self._check(self._rest)

    def _check(self, line: bytes) -> None:
        self._line += 1
        if not line.strip():
            return
        try:
            document = json.loads(line)
        except ValueError as error:
            raise self._refused(f"line {self._line} is not JSON: {error}", "one JSON object a line") from error
        if not isinstance(document, dict):
            raise self._refused(f"line {self._line} is not a JSON object", 'write lines like {"text": "..."}')
        self.documents = (self.documents or 0) + 1


class _ParquetCheck(_TextCheck):
    """Checks that a file begins and ends as parquet does; jobs read what is between."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._first, self._last = b"", b""

    def feed(self, block: bytes) -> None:
        self._first = (self._first + block)[:4]
        self._last = (self._last + block[-4:])[-4:]
        self._seen += len(block)

    def finish(self) -> None:
        if self._first != PARQUET_MAGIC or self._last != PARQUET_MAGIC or self._seen < 3 * len(PARQUET_MAGIC):
            raise self._refused("is no complete parquet file", "upload it again, or name its format")


CHECKS: dict[str, type[_TextCheck]] = {"text": _TextCheck, "jsonl": _JsonlCheck, "parquet": _ParquetCheck}


def _stored_name(file: NewFile) -> str:
    """Return a safe file name whose extension shows its format."""
    name = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in PurePosixPath(file.name).name)
    name = name[-200:] or "data"
    return name if format_of(name) == file.format else name + SUFFIXES[file.format][0]


def _blocks(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in blocks of one stored part."""
    buffer = bytearray()
    for chunk in chunks:
        buffer += chunk
        while len(buffer) >= PART_PLAINTEXT_BYTES:
            yield bytes(buffer[:PART_PLAINTEXT_BYTES])
            del buffer[:PART_PLAINTEXT_BYTES]
    if buffer:
        yield bytes(buffer)


def _taken(name: str) -> Conflict:
    return Conflict("dataset_exists", f"the team has a data set {name!r}", remedy="choose another name")
