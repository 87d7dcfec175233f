"""Data sets: what a spec's `training.data.source` names, uploads with their checks, and what a run is told."""

import codecs
import json
from collections.abc import Iterable
from dataclasses import replace
from difflib import get_close_matches

from django.conf import settings
from django.db import IntegrityError, transaction

from athanor.accounts import audit
from athanor.accounts.models import Team, User
from athanor.artifacts import keys, storage
from athanor.artifacts.models import Dataset, PreparedDataset
from athanor.core import ids
from athanor.core.errors import Conflict, FieldProblem, Invalid
from trainer.contract.data import DataSpec, TokenizerSpec
from trainer.contract.manifest import PART_PLAINTEXT_BYTES, DatasetManifest, StoredFile, StoredPart
from trainer.contract.recipe import dataset_recipes
from trainer.contract.run import DatasetSource

POINTER = "/training/data/source"


def resolve_all(team: Team, data: DataSpec) -> list[Dataset]:
    """The data sets of a spec's data, one a part. Raises Invalid with every one that cannot be used."""
    found: list[Dataset] = []
    problems: list[FieldProblem] = []
    for number, part in enumerate(data.parts):
        try:
            found.append(resolve(team, part.source))
        except Invalid as error:
            pointer = f"/training/data/mixture/{number}/source" if data.mixture else POINTER
            problems += [replace(problem, pointer=pointer) for problem in error.problems]
    if problems:
        detail = problems[0].detail
        raise Invalid("invalid_spec", detail, remedy=detail, problems=tuple(problems))
    return found


def resolve(team: Team, source: str) -> Dataset:
    """The data set a spec names. Raises Invalid with the nearest name, or why an S3 prefix cannot be used."""
    if source.startswith("builtin:"):
        row, _ = Dataset.objects.get_or_create(team=team, name=source, defaults={"origin": Dataset.Origin.BUILTIN})
        return row
    if source.startswith("s3://"):
        return _plain(team, source)
    name = source.removeprefix("dataset:")
    found = Dataset.objects.filter(team=team, name=name, origin=Dataset.Origin.SEALED).first()
    if found is not None:
        return found
    names = list(Dataset.objects.filter(team=team, origin=Dataset.Origin.SEALED).values_list("name", flat=True))
    nearest = get_close_matches(name, names, n=1)
    hint = f"did you mean dataset:{nearest[0]}?" if nearest else "upload it first: athanor dataset add"
    raise _refused("dataset_missing", f"team {team.name} has no data set {name!r}; {hint}")


def sources_for(dataset_ids: list[str], data: DataSpec, tokenizer: TokenizerSpec) -> list[DatasetSource]:
    """What an attempt is told of its data. Lists S3 prefixes anew, so it may raise Unavailable."""
    rows = Dataset.objects.in_bulk(dataset_ids)
    recipes = dataset_recipes(data.parts, tokenizer, dataset_ids)
    return [_source(rows[identifier], recipe) for identifier, recipe in zip(dataset_ids, recipes, strict=True)]


def _source(dataset: Dataset, recipe: str) -> DatasetSource:
    prepared = PreparedDataset.objects.filter(dataset=dataset, recipe=recipe).first()
    files = dataset.files
    if dataset.origin == Dataset.Origin.PLAIN:
        files = [plain_file(item).model_dump() for item in storage.listing(dataset.name) if item.size]
    return DatasetSource(
        dataset_id=dataset.id,
        name=dataset.name,
        origin=Dataset.Origin(dataset.origin).value,
        raw=[StoredFile.model_validate(file) for file in files],
        prepared=DatasetManifest.model_validate(prepared.manifest) if prepared else None,
    )


def upload(team: Team, user: User, name: str, format_: str, chunks: Iterable[bytes]) -> Dataset:
    """Store text, sealed part by part as it comes in, after checking that it can be trained on.

    Raises Invalid for text that is empty, not UTF-8 (with the byte) or not JSONL (with the line); nothing is kept
    of a refused upload but unnamed objects, which are deleted.
    """
    if Dataset.objects.filter(team=team, name=name).exists():
        raise _taken(name)
    identifier = ids.dataset_id()
    sealer = keys.sealer(identifier, team)
    check = _JsonlCheck() if format_ == "jsonl" else _TextCheck()
    parts: list[StoredPart] = []
    try:
        for block in _blocks(chunks):
            check.feed(block)
            ciphertext, part = sealer.seal(block, f"teams/{team.id}/datasets/{identifier}/raw-{len(parts):05d}")
            storage.put(part.key, ciphertext)
            parts.append(part)
        check.finish()
        with transaction.atomic():
            row = Dataset.objects.create(
                id=identifier,
                team=team,
                name=name,
                origin=Dataset.Origin.SEALED,
                format=format_,
                size_bytes=sum(part.plaintext_size for part in parts),
                documents=check.documents,
                files=[StoredFile(path=f"data.{format_}", parts=parts).model_dump()],
                created_by=user,
            )
            facts = {"name": name, "size_bytes": row.size_bytes}
            audit.record("dataset.upload", actor=user, target=("dataset", row.id), team_id=team.id, after=facts)
            return row
    except (Invalid, IntegrityError) as error:
        storage.delete([part.key for part in parts])
        if isinstance(error, IntegrityError):
            raise _taken(name) from error
        raise


class _TextCheck:
    """UTF-8 across block borders, and something to read."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._seen = 0
        self._has_text = False
        self.documents: int | None = None

    def feed(self, block: bytes) -> None:
        pending = len(self._decoder.getstate()[0])
        try:
            text = self._decoder.decode(block)
        except UnicodeDecodeError as error:
            raise _not_utf8(self._seen - pending + error.start) from error
        self._seen += len(block)
        self._has_text = self._has_text or bool(text.strip())

    def finish(self) -> None:
        try:
            self._decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            raise _not_utf8(self._seen - len(error.object)) from error
        if not self._has_text:
            raise Invalid("invalid_dataset", "the upload holds no text", remedy="upload a file that is not empty")


class _JsonlCheck(_TextCheck):
    """Each line that is not blank is a JSON object."""

    def __init__(self) -> None:
        super().__init__()
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
            raise Invalid(
                "invalid_dataset", f"line {self._line} is not JSON: {error}", remedy="one JSON object a line"
            ) from error
        if not isinstance(document, dict):
            raise Invalid(
                "invalid_dataset", f"line {self._line} is not a JSON object", remedy='write lines like {"text": "..."}'
            )
        self.documents = (self.documents or 0) + 1


def _blocks(chunks: Iterable[bytes]) -> Iterable[bytes]:
    """The same bytes in blocks of one stored part."""
    buffer = bytearray()
    for chunk in chunks:
        buffer += chunk
        while len(buffer) >= PART_PLAINTEXT_BYTES:
            yield bytes(buffer[:PART_PLAINTEXT_BYTES])
            del buffer[:PART_PLAINTEXT_BYTES]
    if buffer:
        yield bytes(buffer)


def check_bucket(uri: str, pointer: str = POINTER) -> None:
    """Raises Invalid for what jobs may not read."""
    allowed = [prefix.strip() for prefix in settings.ATHANOR.data_buckets.split(",") if prefix.strip()]
    if storage.split(uri)[0] == storage.bucket() or not any(_under(uri, prefix) for prefix in allowed):
        raise _refused(
            "bucket_not_allowed",
            f"{uri} is not among the buckets that jobs may read ({', '.join(allowed) or 'none'}); "
            "an administrator lists them in ATHANOR_DATA_BUCKETS",
            pointer,
        )


def _plain(team: Team, uri: str) -> Dataset:
    check_bucket(uri)
    if not any(item.size for item in storage.listing(uri)):
        raise _refused("dataset_empty", f"there is nothing under {uri}; check the prefix")
    row, _ = Dataset.objects.get_or_create(team=team, name=uri, defaults={"origin": Dataset.Origin.PLAIN})
    return row


def _under(uri: str, allowed: str) -> bool:
    root = allowed if allowed.startswith("s3://") else f"s3://{allowed}"
    return uri == root or uri.startswith(root if root.endswith("/") else root + "/")


def plain_file(item: storage.Listed) -> StoredFile:
    name = item.key.rpartition("/")[2] or "object"
    safe = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in name)
    part = StoredPart(key=item.key, size=item.size, sha256="0" * 64, plaintext_size=item.size)
    return StoredFile(path=safe, parts=[part])


def _refused(code: str, detail: str, pointer: str = POINTER) -> Invalid:
    return Invalid("invalid_spec", detail, remedy=detail, problems=(FieldProblem(pointer, code, detail),))


def _not_utf8(position: int) -> Invalid:
    return Invalid("invalid_dataset", f"byte {position} is not UTF-8", remedy="convert it, for example: iconv -t UTF-8")


def _taken(name: str) -> Conflict:
    return Conflict("dataset_exists", f"the team has a data set {name!r}", remedy="choose another name")
