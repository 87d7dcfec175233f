"""Check that a backup can be restored: every file and every object is read and compared. Needs no database."""

import hashlib
from collections.abc import Iterable, Iterator
from itertools import islice

from athanor.backups.destination import Destination, workers
from athanor.backups.manifest import OBJECTS, OpenBackup, StoredObject
from trainer.contract.encryption import DecryptionError

READ_AT_A_TIME = 64


def problems_of(backup: OpenBackup) -> Iterator[str]:
    """Yield what is missing, damaged or not what the manifest says, as sentences; nothing for an intact backup."""
    yield from problems_of_files(backup)
    try:
        for objects in batches(backup.objects()):
            with workers() as pool:
                for each, content in zip(
                    objects, pool.map(lambda one: content_of(backup.place, one), objects), strict=True
                ):
                    if isinstance(content, str):
                        yield f"{each.name} {content} ({each.key})"
    except DecryptionError:
        return  # named by the first check


def problems_of_files(backup: OpenBackup) -> Iterator[str]:
    """Yield the problems of the copy of the database and of the list of objects."""
    manifest = backup.manifest
    rows = {table.path: table.rows for table in manifest.tables}
    for file in manifest.files:
        try:
            lines = sum(content.count(b"\n") for content in backup.read(file))
        except DecryptionError as error:
            yield str(error)
            continue
        expected = rows.get(file.path, manifest.num_objects)
        if lines != expected:
            yield f"{file.path} has {lines} lines, and the manifest says {expected}"


def problems_of_sizes(backup: OpenBackup) -> Iterator[str]:
    """Yield the objects that are missing or have another size, without reading them."""
    there = backup.place.sizes(OBJECTS)
    for each in backup.objects():
        if (size := there.get(each.name)) != each.size:
            problem = "is missing" if size is None else f"has {size} bytes instead of {each.size}"
            yield f"{each.name} {problem} ({each.key})"


def content_of(place: Destination, each: StoredObject) -> bytes | str:
    """Return the copy of an object, or what is wrong with it."""
    content = place.read(each.name)
    if content is None:
        return "is missing"
    if len(content) != each.size or hashlib.sha256(content).hexdigest() != each.sha256:
        return "is damaged"
    return content


def batches(objects: Iterable[StoredObject]) -> Iterator[list[StoredObject]]:
    """Yield the objects a few at a time."""
    rest = iter(objects)
    while batch := list(islice(rest, READ_AT_A_TIME)):
        yield batch
