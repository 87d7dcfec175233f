"""The difference between two versions of a data set: of their files, and of their rows where reading these is cheap.

Content is compared by digests. Digests of the stored parts say nothing, since each version is encrypted with a key of
its own, so both versions are read and decrypted: up to MAX_BYTES each, with the memory for MAX_ROWS digests.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from django.db import transaction

from athanor.accounts import audit
from athanor.accounts.models import User
from athanor.artifacts import manifests, previews
from athanor.artifacts.inspection import format_of
from athanor.artifacts.models import Dataset
from athanor.core.errors import Invalid
from trainer.contract.manifest import StoredFile

MAX_BYTES = 128 * 2**20  # of one version
MAX_ROWS = 250_000
DIGEST_BYTES = 16


@dataclass(frozen=True)
class RowCounts:
    """Rows that only the later version has, that only the earlier one has, and that both have."""

    added: int
    removed: int
    common: int


@dataclass(frozen=True)
class Diff:
    """What `after` has that `before` has not, and the other way round. Files are compared by their names.

    `unknown`: files of both, of the same size, of which the content was not read. `rows`: None if they were not
    compared. `note`: why something was not compared.
    """

    before: Dataset
    after: Dataset
    added: list[str]
    removed: list[str]
    changed: list[str]
    same: list[str]
    unknown: list[str]
    rows: RowCounts | None
    note: str


def compare(before: Dataset, after: Dataset, user: User) -> Diff:
    """Compare two uploads. The reading of both is audited.

    Raise Invalid for data that is not an upload, Unavailable if the object store does not answer, and Conflict for a
    file that is damaged.
    """
    for row in (before, after):
        if row.origin != Dataset.Origin.SEALED:
            detail = f"{row} is not an upload; what it contains is not known to the platform"
            raise Invalid("no_versions", detail, remedy="compare versions of uploaded data sets")
    with transaction.atomic():
        for row, other in ((before, after), (after, before)):
            target, facts = ("dataset", row.id), {"with": other.id}
            audit.record("dataset.diff", actor=user, target=target, team_id=row.team_id, after=facts)
    files = [{file.path: file for file in manifests.of_upload(row)} for row in (before, after)]
    common = sorted(files[0].keys() & files[1].keys())
    larger = max((before, after), key=lambda row: row.size_bytes)
    contents, rows, note = None, None, f"{larger} has more than {MAX_BYTES // 2**20} MiB: no content was compared."
    if larger.size_bytes <= MAX_BYTES:
        contents = [_read(row, found.values()) for row, found in zip((before, after), files, strict=True)]
        note = next((found.note for found in contents if found.note), "")
        rows = None if note else _compare_rows(contents[0].rows, contents[1].rows)
    states = {path: _state(path, files, contents) for path in common}
    return Diff(
        before,
        after,
        added=sorted(files[1].keys() - files[0].keys()),
        removed=sorted(files[0].keys() - files[1].keys()),
        **{name: [path for path in common if states[path] == name] for name in ("changed", "same", "unknown")},
        rows=rows,
        note=note,
    )


@dataclass
class _Content:
    """Digests of what a version contains. `note`: why its rows cannot be compared, empty if they can."""

    files: dict[str, bytes] = field(default_factory=dict)
    rows: Counter[bytes] = field(default_factory=Counter)
    note: str = ""


def _state(path: str, files: list[dict[str, StoredFile]], contents: list[_Content] | None) -> str:
    before, after = (found[path] for found in files)
    if before.size != after.size:
        return "changed"
    if contents is None:
        return "unknown"
    return "same" if contents[0].files[path] == contents[1].files[path] else "changed"


def _read(row: Dataset, files: Iterable[StoredFile]) -> _Content:
    """Read a version, part by part."""
    found = _Content()
    for file in files:
        if format_of(file.path) == "parquet":
            found.note = f"{row} has files of parquet: their rows were not compared."
        digest, rest = hashlib.sha256(), b""
        for number in range(len(file.parts)):
            block = previews.read_part(row, file, number)
            digest.update(block)
            if not found.note:
                *lines, rest = (rest + block).split(b"\n")
                _count(lines, found, row)
        _count([rest], found, row)
        found.files[file.path] = digest.digest()
    return found


def _count(lines: list[bytes], found: _Content, row: Dataset) -> None:
    """Count the lines that are not blank, unless the rows cannot be compared anyway."""
    for line in map(bytes.strip, lines):
        if found.note:
            return
        if line:
            found.rows[hashlib.blake2b(line, digest_size=DIGEST_BYTES).digest()] += 1
        if len(found.rows) > MAX_ROWS:
            found.note = f"{row} has more than {MAX_ROWS:,} different rows: rows were not compared."


def _compare_rows(before: Counter[bytes], after: Counter[bytes]) -> RowCounts:
    common = (before & after).total()
    return RowCounts(added=after.total() - common, removed=before.total() - common, common=common)
