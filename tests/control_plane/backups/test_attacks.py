"""What somebody can do who may write to the place of the backups, but has no master key. Needs no store."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from athanor.backups import manifest as manifests
from athanor.backups.destination import FolderDestination, open_destination
from athanor.backups.manifest import BackupManifest, FileWriter, StoredObject, Table
from athanor.backups.restore import restore
from athanor.core import encryption, ids
from athanor.core.errors import AthanorError
from trainer.contract.encryption import DecryptionError

CONTENTS = {"jobs/job_A/model.00000": b"a model of one team", "jobs/job_B/model.00000": b"a model of another team"}
ROWS = b"job_A\tone\njob_B\tother\n"


def stored(key: str, content: bytes) -> StoredObject:
    return StoredObject(key=key, size=len(content), sha256=hashlib.sha256(content).hexdigest())


def make(root: Path, **changes: Any) -> BackupManifest:
    """Write a backup of two objects and one table."""
    place, backup_id = FolderDestination(root), ids.backup_id()
    wrapped_key, encryptor = manifests.new_key(backup_id)
    objects = [stored(key, content) for key, content in CONTENTS.items()]
    for each in objects:
        place.write(each.name, CONTENTS[each.key])
    writer = FileWriter(place, encryptor, backup_id, "jobs_job.copy.zst")
    writer.write(ROWS)
    listed = FileWriter(place, encryptor, backup_id, manifests.OBJECT_LIST)
    files = [writer.close(), manifests.write_objects(listed, objects)]
    made = BackupManifest.model_validate(
        {
            "id": backup_id, "created_at": datetime.now(UTC), "version": "1.0", "wrapped_key": wrapped_key,
            "migrations": [("jobs", "0001_initial")], "sequences": {}, "files": files,
            "tables": [Table(name="jobs_job", columns=["id", "name"], rows=2, path="jobs_job.copy.zst")],
            "num_objects": 2, "object_bytes": sum(each.size for each in objects), **changes,
        }
    )  # fmt: skip
    manifests.write_manifest(place, made, encryptor)
    return made


def verify(root: Path) -> str:
    """Verify as an operator does. Return what is printed, with the error if there is one."""
    printed = StringIO()
    try:
        call_command("verify_backup", str(root), stdout=printed, stderr=printed)
    except CommandError as error:
        return f"{printed.getvalue()}refused: {error}"
    return printed.getvalue()


def object_path(root: Path, key: str) -> Path:
    return root / stored(key, CONTENTS[key]).name


def edit(root: Path, change: Callable[[dict[str, Any]], None]) -> None:
    (path,) = root.glob("backups/*/manifest.json")
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def swap_objects(root: Path) -> None:
    one, other = (object_path(root, key) for key in CONTENTS)
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


def damage_object(root: Path) -> None:
    path = object_path(root, "jobs/job_A/model.00000")
    path.write_bytes(b"A" + path.read_bytes()[1:])


def remove_object(root: Path) -> None:
    object_path(root, "jobs/job_A/model.00000").unlink()


def damage_table(root: Path) -> None:
    (path,) = root.glob("backups/*/jobs_job.copy.zst.00000")
    path.write_bytes(path.read_bytes()[:-1] + b"\0")


def remove_table(root: Path) -> None:
    (path,) = root.glob("backups/*/jobs_job.copy.zst.00000")
    path.unlink()


def exchange_table_with_list(root: Path) -> None:
    (one,), (other,) = root.glob("backups/*/jobs_job.copy.zst.00000"), root.glob("backups/*/objects.jsonl.zst.00000")
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


def table_of_another_backup(root: Path) -> None:
    """The same installation, another day."""
    other = root.with_name("other")
    make(other)
    (theirs,), (ours,) = other.glob("backups/*/jobs_job.copy.zst.00000"), root.glob("backups/*/jobs_job.copy.zst.00000")
    shutil.copy(theirs, ours)


def link_object(root: Path) -> None:
    path = object_path(root, "jobs/job_A/model.00000")
    path.rename(root / "elsewhere")
    path.symlink_to(root / "elsewhere")


def link_folder(root: Path) -> None:
    folder = object_path(root, "jobs/job_A/model.00000").parent
    folder.rename(root / "elsewhere")
    folder.symlink_to(root / "elsewhere")


def fewer_objects(root: Path) -> None:
    edit(root, lambda content: content.update(num_objects=1))


def another_table(root: Path) -> None:
    edit(root, lambda content: content["tables"][0].update(name="accounts_user"))


def climb_out(root: Path) -> None:
    edit(root, lambda content: content["files"][0]["parts"][0].update(key="backups/../../../etc/passwd"))


def no_tag(root: Path) -> None:
    edit(root, lambda content: content.update(tag=""))


def key_of_another_backup(root: Path) -> None:
    other = root.with_name("other")
    key = make(other).wrapped_key
    edit(root, lambda content: content.update(wrapped_key=key))


def as_another_backup(root: Path) -> None:
    """An old backup under the name of a newer one."""
    (path,) = root.glob("backups/*")
    path.rename(path.with_name(ids.backup_id()))


def newer_format(root: Path) -> None:
    edit(root, lambda content: content.update(format=99))


def no_manifest(root: Path) -> None:
    (path,) = root.glob("backups/*/manifest.json")
    path.write_text("not JSON")


ATTACKS = [
    (swap_objects, r"is damaged \(jobs/job_A/model.00000\)\n.*is damaged \(jobs/job_B/model.00000\)"),
    (damage_object, r"is damaged \(jobs/job_A/model.00000\)\nrefused: .* is damaged in 1 places"),
    (remove_object, r"is missing \(jobs/job_A/model.00000\)"),
    (damage_table, "jobs_job.copy.zst.00000: digest differs"),
    (remove_table, "jobs_job.copy.zst.00000 is missing"),
    (exchange_table_with_list, "jobs_job.copy.zst.00000"),
    (table_of_another_backup, "jobs_job.copy.zst.00000: digest differs"),
    (link_object, "is a symbolic link"),
    (link_folder, "is a symbolic link"),
    (fewer_objects, "the backup's manifest was changed"),
    (another_table, "the backup's manifest was changed"),
    (climb_out, "is not the manifest of a backup"),
    (no_tag, "has no authentication tag"),
    (key_of_another_backup, "cannot be opened with this master key"),
    (as_another_backup, "is of another id|cannot be opened"),
    (newer_format, "has the format 99, and this version reads formats up to 1"),
    (no_manifest, "is not the manifest of a backup"),
]


@pytest.mark.parametrize(("attack", "found"), ATTACKS, ids=[attack.__name__ for attack, _ in ATTACKS])
def test_a_changed_backup_is_refused(tmp_path: Path, attack: Callable[[Path], None], found: str) -> None:
    root = tmp_path / "backups"
    make(root)
    assert "is intact" in verify(root)
    attack(root)
    printed = verify(root)
    assert "refused: " in printed
    assert_matches(printed, found)


def assert_matches(text: str, pattern: str) -> None:
    with pytest.raises(AssertionError, match=pattern):
        raise AssertionError(text)


def test_a_backup_of_another_installation_is_refused_before_anything_is_written(tmp_path: Path, settings: Any) -> None:
    make(tmp_path)
    other = {"master_key": encryption.new_wrapping_keyset()}
    settings.ATHANOR = settings.ATHANOR.model_copy(update=other)
    with pytest.raises(CommandError, match=r"cannot be opened with this master key.*set ATHANOR_MASTER_KEY"):
        call_command("restore", str(tmp_path), stdout=StringIO())


def test_a_key_that_leads_out_of_the_bucket_is_refused() -> None:
    for key in ("../../x", "jobs/../../x", "jobs//x", "audit-anchors/1.json", "/etc/passwd", "jobs/a/./b"):
        with pytest.raises(ValueError, match="key"):
            StoredObject(key=key, size=1, sha256="0" * 64)


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    root, outside = tmp_path / "backups", tmp_path / "outside"
    outside.mkdir()
    root.mkdir()
    (root / "objects").symlink_to(outside)
    with pytest.raises(AthanorError, match="objects is a symbolic link, which no backup contains"):
        FolderDestination(root).write("objects/ab/x", b"content")
    (root / "objects").unlink()
    (root / "objects").mkdir()
    (outside / "file").write_bytes(b"theirs")
    (root / "objects" / "x").symlink_to(outside / "file")
    FolderDestination(root).write("objects/x", b"ours")
    assert (outside / "file").read_bytes() == b"theirs"
    assert not (root / "objects" / "x").is_symlink()


def test_what_others_may_do_with_new_files_does_not_depend_on_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make(tmp_path / "backups")
    finally:
        os.umask(before)
    modes = {path.stat().st_mode & 0o777 for path in [tmp_path / "backups", *(tmp_path / "backups").rglob("*")]}
    assert modes == {0o700, 0o600}


def test_a_place_without_a_backup_is_named(tmp_path: Path) -> None:
    assert "there is no complete backup at this place" in verify(tmp_path / "nothing")
    made = make(tmp_path)
    with pytest.raises(CommandError, match=rf"no complete backup bkp_X at this place: choose one of {made.id}"):
        call_command("verify_backup", str(tmp_path), backup="bkp_X", stdout=StringIO())


def test_a_part_of_a_file_is_not_handed_out(tmp_path: Path) -> None:
    make(tmp_path)
    damage_table(tmp_path)
    opened = manifests.open_backup(open_destination(str(tmp_path)))
    with pytest.raises(DecryptionError):
        list(opened.read(opened.manifest.file("jobs_job.copy.zst")))


@pytest.mark.django_db
def test_a_backup_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    make(tmp_path, version="9.0", migrations=[("jobs", "9001_of_next_year")])
    opened = manifests.open_backup(open_destination(str(tmp_path)))
    with pytest.raises(AthanorError, match=r"version 9\.0.*does not know: jobs\.9001_of_next_year"):
        restore(opened, print)


@pytest.mark.django_db
def test_a_database_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    make(tmp_path)
    with pytest.raises(CommandError, match=r"the database .* has \d+ tables, such as .*: create an empty database"):
        call_command("restore", str(tmp_path), stdout=StringIO())
