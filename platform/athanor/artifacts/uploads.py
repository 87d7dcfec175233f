"""New data sets: files encrypted part by part as they arrive, each checked to be usable for training.

Checked are: text is UTF-8, each line of JSONL a JSON object, each line of chat data a conversation, and parquet begins
and ends as parquet does. What the first lines hold is detected (`inspection.py`), for specs that leave the format open.
"""

import codecs
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import PurePosixPath
from typing import Any

from django.db import IntegrityError, transaction

from athanor.accounts import audit
from athanor.accounts.models import Team, User
from athanor.artifacts import dataset_versions, keys, storage, usage
from athanor.artifacts.inspection import (
    JSON_LINES,
    PARQUET_MAGIC,
    SAMPLE_BYTES,
    SUFFIXES,
    Inspection,
    format_of,
    inspect,
    inspect_footer,
    not_utf8,
    parse_line,
)
from athanor.artifacts.models import Dataset
from athanor.core import ids
from athanor.core.disks import require_space
from athanor.core.errors import Conflict, FieldProblem, Invalid, NotFound
from athanor.quotas.selectors import path_of_team
from trainer.contract.chat import TOOLS_FIELD, conversation_problem
from trainer.contract.encryption import Encryptor, authenticate
from trainer.contract.labels import labelled_answer_problem
from trainer.contract.manifest import PART_PLAINTEXT_BYTES, StoredFile, StoredPart, UploadManifest

MAX_FILES = 10_000


@dataclass(frozen=True)
class NewFile:
    """A file to upload. `name` is used in errors. Its chunks can be read once, before the next file's.

    `format`: one of FORMATS, or `auto` to detect it.
    """

    name: str
    format: str
    chunks: Iterable[bytes]


def upload(
    team: Team,
    user: User,
    name: str,
    files: Iterable[NewFile],
    record: Callable[[Dataset], None] | None = None,
    *,
    text_field: str = "",
    is_new_version: bool = False,
) -> Dataset:
    """Store files as one data set, or as the next version of one. `text_field`: the field to train on, if it is not the
    detected one.

    Raise Invalid for no file, and, with the place, for one that is empty or does not have its format; Conflict if the
    team has a data set of this name, or is at its storage limit; NotFound if it has none to add a version to;
    Unavailable if a disk is full. A refused upload leaves only unnamed objects, which are deleted. `record` is called
    with the new row, in its transaction.
    """
    require_space()
    dataset_versions.check_name(team, name, is_new_version=is_new_version)
    place = path_of_team(team)
    usage.check(place)
    identifier = ids.dataset_id()
    encryptor = keys.encryptor(identifier, team)
    incoming = _Incoming(encryptor, f"teams/{team.id}/datasets/{identifier}/raw")
    try:
        incoming.take_all(files)
        if text_field and text_field != incoming.text_field and text_field not in (incoming.fields or ()):
            raise _no_field(text_field, incoming.fields or [])
        size = sum(part.plaintext_size for part in incoming.parts)
        with transaction.atomic():
            usage.check(place, size)
            _check_team_exists(team)
            dataset_versions.check_name(team, name, is_new_version=is_new_version)
            row = Dataset.objects.create(
                id=identifier,
                team=team,
                name=name,
                version=dataset_versions.next_number(team, name),
                origin=Dataset.Origin.SEALED,
                format=incoming.format,
                size_bytes=size,
                documents=incoming.documents,
                text_field=text_field or incoming.text_field,
                fields=incoming.fields,
                files=[file.model_dump() for file in incoming.files],
                tag=authenticate(UploadManifest(dataset_id=identifier, files=incoming.files), encryptor).tag,
                created_by=user,
            )
            facts = {"name": name, "version": row.version, "size_bytes": row.size_bytes, "files": len(incoming.files)}
            audit.record("dataset.upload", actor=user, target=("dataset", row.id), team_id=team.id, after=facts)
            if record:
                record(row)
            return row
    except (Invalid, Conflict, NotFound, IntegrityError) as error:
        storage.delete([part.key for part in incoming.parts])
        if isinstance(error, IntegrityError):  # the answer of an equal request is stored already
            raise dataset_versions.taken(name) from error
        raise


def _no_field(text_field: str, fields: list[str]) -> Invalid:
    detail = (
        f"text_field={text_field!r}: the first line has no text in it (fields with text: {', '.join(fields) or 'none'})"
    )
    problem = FieldProblem("/text_field", "no_text_field", detail)
    return Invalid("invalid_dataset", detail, remedy="name one of these fields, or none", problems=(problem,))


def _check_team_exists(team: Team) -> None:
    """Raise Conflict for a team that was deleted since the upload began, and lock it against deletion."""
    if not Team.objects.select_for_update(no_key=True).filter(pk=team.pk, deleted_at=None).exists():
        raise Conflict("team_deleted", f"team {team.name} is deleted", remedy="upload to another team")


class _Incoming:
    """The part of an upload that is already stored."""

    def __init__(self, encryptor: Encryptor, prefix: str) -> None:
        self._encryptor, self._prefix = encryptor, prefix
        self._found: list[Inspection] = []
        self.parts: list[StoredPart] = []
        self.files: list[StoredFile] = []
        self.documents: int | None = None

    @property
    def format(self) -> str:
        """Return the format of all files; auto if each has that of its name."""
        formats = {found.format for found in self._found}
        return next(iter(formats)) if len(formats) == 1 else "auto"

    @property
    def text_field(self) -> str:
        """Return the field to read in all files; empty if they differ or the user has to choose."""
        names = {found.text_field for found in self._found if found.fields is not None}
        return next(iter(names)) if len(names) == 1 else ""

    @property
    def fields(self) -> list[str] | None:
        """Return the fields with text that all files have, in the order of the first file; None if not known."""
        known = [found.fields for found in self._found if found.fields is not None]
        return [name for name in known[0] if all(name in fields for fields in known)] if known else None

    def take_all(self, files: Iterable[NewFile]) -> None:
        for file in files:
            self._take(file)
        if not self.files:
            raise Invalid("invalid_dataset", "the upload holds no file", remedy="upload one at least")

    def _take(self, file: NewFile) -> None:
        pieces = blocks(file.chunks)
        first_block = next(pieces, b"")
        found = _detect(file, first_block)
        path = _stored_name(file.name, found.format)
        if len(self.files) == MAX_FILES:
            raise Invalid("invalid_dataset", f"more than {MAX_FILES} files", remedy="join them, or make several sets")
        if any(known.path == path for known in self.files):
            raise Invalid("invalid_dataset", f"two files would be stored as {path}", remedy="rename one")
        check = CHECKS[found.format](file.name, found)
        first = len(self.parts)
        for block in chain([first_block] if first_block else [], pieces):
            check.feed(block)
            ciphertext, part = self._encryptor.encrypt(block, f"{self._prefix}-{len(self.parts):05d}")
            self.parts.append(part)
            storage.put(part.key, ciphertext)
        check.finish()
        self._found.append(check.found)
        self.files.append(StoredFile(path=path, parts=self.parts[first:]))
        if check.documents is not None:
            self.documents = (self.documents or 0) + check.documents


def _detect(file: NewFile, first_block: bytes) -> Inspection:
    """Inspect the beginning of a file; the end of parquet is inspected when it has arrived."""
    is_parquet = file.format == "parquet" or (
        file.format == "auto" and (format_of(file.name) == "parquet" or first_block[:4] == PARQUET_MAGIC)
    )
    return Inspection("parquet") if is_parquet else inspect(file.name, first_block[:SAMPLE_BYTES], file.format, rows=1)


class _TextCheck:
    """Checks that a file is not empty and is UTF-8, also across blocks."""

    def __init__(self, name: str, found: Inspection) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._name = name
        self.found = found
        self._seen = 0
        self._has_text = False
        self.documents: int | None = None

    def feed(self, block: bytes) -> None:
        pending = len(self._decoder.getstate()[0])
        try:
            text = self._decoder.decode(block)
        except UnicodeDecodeError as error:
            raise not_utf8(self._name, self._seen - pending + error.start) from error
        self._seen += len(block)
        self._has_text = self._has_text or bool(text.strip())

    def finish(self) -> None:
        try:
            self._decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            raise not_utf8(self._name, self._seen - len(error.object)) from error
        if not self._has_text:
            raise self._refused("holds no text", "upload a file that is not empty")

    def _refused(self, what: str, remedy: str) -> Invalid:
        return Invalid("invalid_dataset", f"{self._name}: {what}", remedy=remedy)


class _JsonlCheck(_TextCheck):
    """Checks that each line that is not blank is a JSON object."""

    def __init__(self, name: str, found: Inspection) -> None:
        super().__init__(name, found)
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
        if line.strip():
            self._check_record(parse_line(self._name, self._line, line))
            self.documents = (self.documents or 0) + 1

    def _check_record(self, record: dict[str, Any]) -> None:
        """Check what the object of a line has in it."""


class _ChatCheck(_JsonlCheck):
    """Checks that each line has a conversation in the same field."""

    def _check_record(self, record: dict[str, Any]) -> None:
        field = self.found.text_field
        problem = conversation_problem(record.get(field), record.get(TOOLS_FIELD))
        if problem:
            raise self._refused(
                f"line {self._line}: {field} {problem}, unlike the first line",
                "correct or remove the line; for text that is no conversation choose the format jsonl",
            )


class _LabelCheck(_JsonlCheck):
    """Checks that each line has an answer with a label."""

    def _check_record(self, record: dict[str, Any]) -> None:
        problem = labelled_answer_problem(record)
        if problem:
            remedy = "correct or remove the line; for text without labels choose the format jsonl, or chat"
            raise self._refused(f"line {self._line} {problem}", remedy)


class _ParquetCheck(_TextCheck):
    """Checks that a file begins and ends as parquet does, and reads its columns; jobs read what is between."""

    def __init__(self, name: str, found: Inspection) -> None:
        super().__init__(name, found)
        self._first, self._last = b"", b""

    def feed(self, block: bytes) -> None:
        self._first = (self._first + block)[:4]
        self._last = (self._last + block[-SAMPLE_BYTES:])[-SAMPLE_BYTES:]
        self._seen += len(block)

    def finish(self) -> None:
        if self._first != PARQUET_MAGIC or self._last[-4:] != PARQUET_MAGIC or self._seen < 3 * len(PARQUET_MAGIC):
            raise self._refused("is no complete parquet file", "upload it again, or name its format")
        self.found = inspect_footer(self._name, self._last) or self.found
        self.documents = self.found.documents


CHECKS: dict[str, type[_TextCheck]] = {
    "text": _TextCheck,
    "jsonl": _JsonlCheck,
    "preference": _JsonlCheck,
    "unpaired": _LabelCheck,
    "chat": _ChatCheck,
    "parquet": _ParquetCheck,
}


def _stored_name(file_name: str, form: str) -> str:
    """Return a safe file name. Jobs read the file in the format that its extension shows."""
    name = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in PurePosixPath(file_name).name)
    name = name[-200:] or "data"
    stored_as = "jsonl" if form in JSON_LINES else form
    return name if format_of(name) == stored_as else name + SUFFIXES[stored_as][0]


def blocks(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in blocks of one stored part."""
    buffer = bytearray()
    for chunk in chunks:
        buffer += chunk
        while len(buffer) >= PART_PLAINTEXT_BYTES:
            yield bytes(buffer[:PART_PLAINTEXT_BYTES])
            del buffer[:PART_PLAINTEXT_BYTES]
    if buffer:
        yield bytes(buffer)
