"""Make a backup: the database first, in one snapshot, then the objects that it refers to.

Objects never change in place, and none is deleted until the backup ends (artifacts/deletion_hold.py), so the copies fit
the snapshot however long they take. An object that is at the place already, from an earlier backup or from one that was
killed, is not read again. The manifest is written last.
"""

import hashlib
import importlib.metadata
import threading
from collections.abc import Callable
from dataclasses import dataclass

from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from django.utils import timezone

from athanor.accounts import audit
from athanor.artifacts import deletion_hold, rotation, storage
from athanor.backups import manifest as manifests
from athanor.backups import referenced, tables
from athanor.backups.destination import Destination, workers
from athanor.backups.manifest import OBJECTS, BackupManifest, FileWriter, MissingObject, StoredObject, Table
from athanor.core import encryption, ids
from athanor.core.errors import Conflict
from trainer.contract.encryption import Encryptor
from trainer.contract.manifest import MANIFEST_NAME, StoredFile, StoredPart

ACTOR = "operator"  # a person who can run commands on the platform's machine
Report = Callable[[str], None]


@dataclass(frozen=True)
class Made:
    """A new backup. `copied`: objects that were not at the place before; `removed`: ids of older backups."""

    manifest: BackupManifest
    copied: int
    copied_bytes: int
    removed: list[str]


def create(place: Destination, report: Report, *, keep: int | None = None) -> Made:
    """Make a backup, and then delete all but the newest `keep`. Raise Conflict while the master key is replaced."""
    if encryption.previous_master_keyset():
        raise Conflict(
            "rotation_unfinished",
            "ATHANOR_PREVIOUS_MASTER_KEY is set: the keys in the database may need two master keys",
            remedy="finish `manage.py rotate_master_key`, remove ATHANOR_PREVIOUS_MASTER_KEY, then make the backup",
        )
    backup_id = ids.backup_id()
    wrapped_key, encryptor = manifests.new_key(backup_id)
    with deletion_hold.hold() as require_hold:
        began = timezone.now()
        with tables.snapshot():
            rotation.require_master_key()
            report(f"{backup_id}: copying the database")
            dumped, files = _dump(place, encryptor, backup_id)
            sequences = tables.sequences()
            applied = sorted(MigrationRecorder(connection).applied_migrations())
            parts = {part.key: part for part in referenced.parts()}
            notes = sorted(set(referenced.notes()) - set(parts))
        report(f"{backup_id}: copying objects; the database refers to {len(parts)}")
        copier = Copier(place)
        copier.copy(list(parts.values()), notes)
        writer = FileWriter(place, encryptor, backup_id, manifests.OBJECT_LIST)
        files.append(manifests.write_objects(writer, copier.objects))
        manifest = BackupManifest(
            id=backup_id,
            created_at=began,
            version=importlib.metadata.version("athanor"),
            wrapped_key=wrapped_key,
            migrations=applied,
            tables=dumped,
            sequences=sequences,
            num_objects=len(copier.objects),
            object_bytes=sum(each.size for each in copier.objects),
            missing=copier.missing,
            files=files,
        )
        require_hold()
        manifests.write_manifest(place, manifest, encryptor)
        removed = remove_older(place, keep) if keep else []
    facts = {"objects": manifest.num_objects, "size_bytes": manifest.object_bytes, "missing": len(manifest.missing)}
    audit.record_alone("backup.create", actor=ACTOR, target=("backup", backup_id), after=facts)
    return Made(manifest, copier.copied, copier.copied_bytes, removed)


def remove_older(place: Destination, keep: int) -> list[str]:
    """Delete all but the newest `keep` backups of a place, and the objects that no other one has.

    Raise Misconfigured or Invalid if one that stays cannot be read, since its objects are not known then.
    """
    known = manifests.ids_of(place)
    needed: set[str] = set()
    for backup_id in known[-keep:]:
        needed |= {each.name for each in manifests.open_backup(place, backup_id).objects()}
    stay = set(known[-keep:])
    own = list(place.sizes(manifests.BACKUPS))
    # The manifest goes first: a backup without one does not exist. Those that were killed have none.
    place.delete([name for name in own if name in {manifests.manifest_name(each) for each in known[:-keep]}])
    place.delete([name for name in own if name.split("/")[1] not in stay and not name.endswith(MANIFEST_NAME)])
    place.delete([name for name in place.sizes(OBJECTS) if name not in needed])
    return known[:-keep]


def _dump(place: Destination, encryptor: Encryptor, backup_id: str) -> tuple[list[Table], list[StoredFile]]:
    dumped, files = [], []
    for name in tables.names():
        path, columns, rows = f"{name}.copy.zst", tables.columns_of(name), 0
        writer = FileWriter(place, encryptor, backup_id, path)
        for block in tables.copy_out(name, columns):
            rows += block.count(b"\n")  # one in a value is written as \n, of two letters
            writer.write(block)
        files.append(writer.close())
        dumped.append(Table(name=name, columns=columns, rows=rows, path=path))
    return dumped, files


class Copier:
    """Copies objects to the place, unless they are there with their size."""

    def __init__(self, place: Destination) -> None:
        """List what the place has."""
        self._place = place
        self._there = place.sizes(OBJECTS)
        self.objects: list[StoredObject] = []
        self.missing: list[MissingObject] = []
        self.copied = self.copied_bytes = 0
        self._lock = threading.Lock()

    def copy(self, parts: list[StoredPart], notes: list[str]) -> None:
        """Copy parts, with the sizes and digests of their manifests, and those notes that exist, as they are."""
        with workers() as pool:
            for part, problem in zip(parts, pool.map(self._copy_part, parts), strict=True):
                if problem:
                    self.missing.append(MissingObject(key=part.key, problem=problem))
                else:
                    self.objects.append(StoredObject(key=part.key, size=part.size, sha256=part.sha256))
            self.objects += filter(None, pool.map(self._copy_note, notes))
        self.objects.sort(key=lambda each: each.key)

    def _copy_part(self, part: StoredPart) -> str:
        """Copy one part. Return what is wrong with it; empty if nothing is."""
        try:
            wanted = StoredObject(key=part.key, size=part.size, sha256=part.sha256)
        except ValueError:
            return "its key is none of the platform's"
        if self._there.get(wanted.name) == part.size:
            return ""
        content = storage.get(part.key)
        if content is None:
            return "it is not in the store"
        if len(content) != part.size or hashlib.sha256(content).hexdigest() != part.sha256:
            return "it differs from its manifest"
        self._write(wanted, content)
        return ""

    def _copy_note(self, key: str) -> StoredObject | None:
        content = storage.get(key)
        if content is None:
            return None
        note = StoredObject(key=key, size=len(content), sha256=hashlib.sha256(content).hexdigest())
        if self._there.get(note.name) != note.size:
            self._write(note, content)
        return note

    def _write(self, each: StoredObject, content: bytes) -> None:
        self._place.write(each.name, content)
        with self._lock:
            self.copied += 1
            self.copied_bytes += each.size
