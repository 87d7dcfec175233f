"""What a backup copies and leaves out, and what holds while the platform works on."""

import stat
import threading
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.utils import timezone

from athanor.artifacts import deletion_hold, services, storage
from athanor.artifacts.models import Checkpoint
from athanor.backups import create, manifest, tables
from athanor.backups.destination import open_destination
from athanor.core import encryption
from athanor.jobs.models import Job
from tests.control_plane import drive
from tests.control_plane.artifacts.test_manifests import registered
from tests.control_plane.backups.conftest import Installation, back_up, in_another_session, superuser

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


def keys_in(place: Path) -> set[str]:
    return {each.key for each in manifest.open_backup(open_destination(str(place))).objects()}


def parts_of(checkpoint: Checkpoint) -> set[str]:
    return {part["key"] for file in checkpoint.manifest["files"] for part in file["parts"]}


def test_only_the_owner_reads_it_and_nothing_in_it_is_readable(backed_up: Path, settings: Any) -> None:
    for path in [backed_up, *backed_up.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    content = b"".join(path.read_bytes() for path in backed_up.rglob("*") if path.is_file())
    for secret in ("a text of the team", "a secret of the team", "llama-1m", settings.ATHANOR.master_key):
        assert secret.encode() not in content


def test_what_an_earlier_backup_has_is_not_copied_again(
    installation: Installation, backed_up: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage_get, read = storage.get, []
    monkeypatch.setattr(storage, "get", lambda key: read.append(key) or storage_get(key))
    assert "of which 0 (0 bytes) were copied now" in back_up(backed_up)
    assert not parts_of(installation.checkpoint) & set(read)
    newer = registered(drive.attempt_of(installation.running), 20)
    assert "of which 2 (" in back_up(backed_up)
    first, second, third = manifest.ids_of(open_destination(str(backed_up)))
    services.retired_checkpoints()
    Checkpoint.objects.filter(pk=newer.pk).update(retired_at=timezone.now())
    printed = back_up(backed_up, "--keep", "1")
    assert f"deleted: {first}, {second}, {third}" in printed
    assert len(manifest.ids_of(open_destination(str(backed_up)))) == 1
    stored = {each.name for each in manifest.open_backup(open_destination(str(backed_up))).objects()}
    assert set(open_destination(str(backed_up)).sizes("objects")) == stored
    assert parts_of(installation.checkpoint) <= keys_in(backed_up)
    assert not parts_of(newer) & keys_in(backed_up), "its objects are being deleted"


def test_a_backup_waits_for_a_sweep_and_excludes_another_backup(place: Path) -> None:
    begun, may_end = threading.Event(), threading.Event()

    @deletion_hold.unless_held
    def sweep() -> int:
        begun.set()
        may_end.wait(60)
        return 1

    def hold() -> str:
        with deletion_hold.hold():
            assert may_end.is_set(), "the hold began while a sweep was deleting"
            return "held"

    sweeping = threading.Thread(target=in_another_session, args=[sweep])
    sweeping.start()
    assert begun.wait(60)
    waiting = threading.Thread(target=in_another_session, args=[hold])
    waiting.start()
    with connection.cursor() as cursor:
        is_waiting = False
        while not is_waiting:  # until the database says that it waits; the test's own limit ends it otherwise
            cursor.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
            is_waiting = cursor.fetchone()[0] == 1
    with pytest.raises(CommandError, match="another backup of this database is running"):
        back_up(place)
    may_end.set()
    sweeping.join()
    waiting.join()
    with deletion_hold.hold():
        pass


def test_no_backup_is_made_without_the_hold(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database ends the session that holds off deletions."""
    copy = create.Copier.copy

    def lose_session(*arguments: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            superuser(f"SELECT pg_terminate_backend({cursor.fetchone()[0]}, 5000)")
        copy(*arguments)

    monkeypatch.setattr(create.Copier, "copy", lose_session)
    with pytest.raises(CommandError, match="connection to the database was lost"):
        back_up(place)
    connection.close()
    assert manifest.ids_of(open_destination(str(place))) == []


def test_objects_that_are_lost_or_damaged_are_named(installation: Installation, place: Path) -> None:
    lost, damaged = sorted(parts_of(installation.checkpoint))
    storage.delete([lost])
    storage.put(damaged, b"something else")
    printed = StringIO()
    with pytest.raises(CommandError, match="complete but for 2 objects"):
        call_command("backup", str(place), stdout=StringIO(), stderr=printed)
    assert f"{lost}: it is not in the store" in printed.getvalue()
    assert f"{damaged}: it differs from its manifest" in printed.getvalue()
    shown = StringIO()
    call_command("verify_backup", str(place), stdout=shown)
    assert f"could not be copied: {lost}" in shown.getvalue()
    assert "is intact" in shown.getvalue()
    assert not keys_in(place) & {lost, damaged}


def test_a_row_that_names_an_object_of_no_job_is_named(installation: Installation, place: Path) -> None:
    files = installation.checkpoint.manifest["files"]
    files[0]["parts"][0]["key"] = "../../etc/passwd"
    Checkpoint.objects.filter(pk=installation.checkpoint.pk).update(manifest={"files": files})
    with pytest.raises(CommandError, match="complete but for 1 objects"):
        back_up(place)


def test_it_is_made_in_another_bucket_too_but_not_in_the_platforms_own(installation: Installation) -> None:
    name = f"backups-{installation.model.pk.lower().replace('_', '-')}"
    storage.client().create_bucket(Bucket=name)
    back_up(f"s3://{name}/athanor")
    shown = StringIO()
    call_command("verify_backup", f"s3://{name}/athanor", stdout=shown)
    assert "is intact" in shown.getvalue()
    with pytest.raises(CommandError, match="is in the platform's own bucket"):
        back_up(f"s3://{storage.bucket()}/backups")


def test_not_while_the_master_key_is_replaced(place: Path, settings: Any) -> None:
    new = encryption.new_wrapping_keyset()
    old = settings.ATHANOR.master_key
    settings.ATHANOR = settings.ATHANOR.model_copy(update={"master_key": new, "previous_master_key": old})
    with pytest.raises(CommandError, match="finish `manage.py rotate_master_key`"):
        back_up(place)
    assert not place.exists()


def test_one_state_of_the_database_is_copied(installation: Installation, place: Path, monkeypatch: Any) -> None:
    """A job that is submitted while tables are copied is in none of them."""
    columns_of = tables.columns_of

    def meanwhile(table: str) -> list[str]:
        if table == "jobs_job":
            in_another_session(lambda: Job.objects.filter(name="running").update(name="renamed meanwhile"))
        return columns_of(table)

    monkeypatch.setattr(tables, "columns_of", meanwhile)
    back_up(place)
    opened = manifest.open_backup(open_destination(str(place)))
    content = b"".join(opened.read(opened.manifest.file("jobs_job.copy.zst")))
    assert b"\trunning\t" in content
    assert b"renamed meanwhile" not in content
    assert Job.objects.filter(name="renamed meanwhile").exists()
