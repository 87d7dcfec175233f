"""Back up while a job runs, lose everything, restore elsewhere: a model is downloaded, the job resumes."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as configured
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection, transaction
from django.utils import timezone

from athanor.accounts import audit
from athanor.accounts.models import ApiToken, AuditEvent, Team, User
from athanor.artifacts import deletions, manifests, services, signing_keys, storage, unreferenced
from athanor.artifacts.models import Artifact, Checkpoint, Dataset, Deletion, JobStorage, SigningKey, TeamSecret
from athanor.backends.fake.backend import World
from athanor.backups import create, tables
from athanor.compliance import erasure
from athanor.dispatch.services import run_config_of
from athanor.jobs.models import Attempt, Job
from deploy.local.environment import REPOSITORY, with_repository_on_path
from deploy.local.handle import wait_until
from tests.control_plane import drive
from tests.control_plane.artifacts.test_base_models import FILES
from tests.control_plane.backups.conftest import (
    UPLOADED,
    Elsewhere,
    Installation,
    back_up,
    entered,
    in_another_session,
    objects_of,
)

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.processes]
DIFFERS = {"accounts_auditevent", "accounts_audithead"}  # a restore adds a record


def rows_of_all_tables() -> dict[str, list[bytes]]:
    with transaction.atomic():
        return {
            name: sorted(b"".join(tables.copy_out(name, tables.columns_of(name))).splitlines())
            for name in tables.names()
        }


def run_all_that_deletes() -> list[int]:
    """Run all that deletes objects. Return what each has done."""
    done = [services.sweep_retired(), deletions.purge_due(), erasure.run_due()]
    unreferenced.sweep()
    return [*done, JobStorage.objects.exclude(scanned_at=None).count()]


@pytest.fixture
def changes_meanwhile(installation: Installation, other_team: Team, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """While objects are copied, the model, the checkpoint and a team are deleted; what was done about it meanwhile."""
    copy = create.Copier.copy
    done: list[int] = []

    def delete(team: Team, kind: str, target_id: str) -> Deletion:
        return Deletion.objects.create(
            team=team, kind=kind, target_id=target_id, name="deleted", size_bytes=0, purge_after=timezone.now()
        )

    def delete_meanwhile(*arguments: Any) -> None:
        model = installation.model
        Checkpoint.objects.filter(pk=installation.checkpoint.pk).update(retired_at=timezone.now())
        Artifact.objects.filter(pk=model.pk).update(deletion=delete(model.job.team, "artifact", model.pk))
        Team.objects.filter(pk=other_team.pk).update(deleted_at=timezone.now())
        delete(other_team, "team", other_team.pk)
        done.extend(in_another_session(run_all_that_deletes))
        copy(*arguments)

    monkeypatch.setattr(create.Copier, "copy", delete_meanwhile)
    return done


def test_everything_is_lost_and_restored_elsewhere(
    installation: Installation,
    changes_meanwhile: list[int],
    place: Path,
    elsewhere: Elsewhere,
    world: World,
    settings: Any,
) -> None:
    before = rows_of_all_tables()
    back_up(place)
    assert changes_meanwhile == [0, 0, 0, 0]
    own = {key for key in objects_of(storage.bucket()) if key.split("/")[1] in owners(installation)}
    copies = {key: storage.get(key) for key in own}
    assert run_all_that_deletes() == [1, 1, 1, 2], "objects are deleted again after the backup"
    storage.delete(list(own))  # the bucket is lost, and the database is another one from here on
    world.forget(drive.attempt_of(installation.running).backend_name)

    with entered(elsewhere, settings):
        printed = StringIO()
        call_command("restore", str(place), stdout=printed)
        assert "is restored" in printed.getvalue()
        after = rows_of_all_tables()
        assert {name for name in before if before[name] != after[name]} == DIFFERS
        assert objects_of(elsewhere.bucket).items() >= copies.items()
        assert list(audit.verify([])) == []
        assert AuditEvent.objects.order_by("-seq").first().action == "backup.restore"
        check_guards()
        check_data(installation)
        check_resume(installation)
        User.objects.create(username="a new user")  # sequences and defaults continue


def owners(installation: Installation) -> set[str]:
    return {installation.model.job_id, installation.running.id, installation.upload.team_id}


def check_guards() -> None:
    """The triggers and policies of the tables are in force again."""
    with pytest.raises(DatabaseError, match="append"), transaction.atomic():
        AuditEvent.objects.update(actor="eve")
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_class WHERE relrowsecurity AND NOT relforcerowsecurity")
        assert cursor.fetchone()[0] == 0
        cursor.execute("SELECT has_table_privilege(%s, 'jobs_job', 'SELECT')", [configured.DATABASE_RUNTIME_ROLE])
        assert cursor.fetchone()[0]
        cursor.execute("SELECT has_table_privilege(%s, 'accounts_auditevent', 'DELETE')", ["athanor"])
        assert not cursor.fetchone()[0]


def check_data(installation: Installation) -> None:
    model = Artifact.objects.select_related("job__team").get(pk=installation.model.pk)
    assert {path: b"".join(services.opened_parts(model, path)) for path in FILES} == FILES
    upload = Dataset.objects.select_related("team").get(pk=installation.upload.pk)
    (file,) = manifests.of_upload(upload)
    content = storage.get(file.parts[0].key)
    assert content is not None
    assert manifests.keys.encryptor(upload.id, upload.team).decrypt(content, file.parts[0]) == UPLOADED
    signing_keys.sign(model, model.job.created_by)
    assert SigningKey.objects.count() == 1, "the restored key has signed"
    assert TeamSecret.objects.filter(name="TOKEN").exists()
    assert ApiToken.objects.filter(revoked_at=None).exists()


def check_resume(installation: Installation) -> None:
    """The lost attempt ends as one that its cluster does not know, and the next one begins at the checkpoint."""
    job = Job.objects.get(pk=installation.running.pk)
    assert drive.status_of(job)[0] == "running"
    for _ in range(2):
        drive.time_passes(60)
        drive.settle()
    drive.time_passes(60)
    drive.settle()
    lost = Attempt.objects.get(job=job, number=1)
    assert (lost.status, lost.reason) == ("ended", "unknown_loss")
    Job.objects.filter(pk=job.pk).update(act_after=None)
    resumed = drive.start(job)
    assert resumed.number == 2
    resume = run_config_of(resumed).resume
    assert resume is not None
    assert resume.step == installation.checkpoint.step
    for part in resume.files[0].parts:
        assert storage.size_of(part.key) == part.size


@pytest.mark.slow
@pytest.mark.usefixtures("installation")
def test_a_restore_that_is_killed_continues(backed_up: Path, elsewhere: Elsewhere, settings: Any) -> None:
    """While it copies objects, and while it makes the tables."""
    storage.client().create_bucket(Bucket=elsewhere.bucket)
    killed(backed_up, elsewhere, lambda: bool(objects_of(elsewhere.bucket)))
    killed(backed_up, elsewhere, lambda: "jobs_job" in tables_of(elsewhere))
    damage(backed_up)
    storage.delete([f"s3://{elsewhere.bucket}/{key}" for key in objects_of(elsewhere.bucket)])
    with (
        entered(elsewhere, settings),
        pytest.raises(CommandError, match=r"(?s)missing or damaged.*objects/.* is damaged"),
    ):
        call_command("restore", str(backed_up), stdout=StringIO())
    other = backed_up.with_name("other")
    call_command("backup", str(other), stdout=StringIO())
    with entered(elsewhere, settings):
        with pytest.raises(CommandError, match="is being restored into this database"):
            call_command("restore", str(other), stdout=StringIO())
        printed = StringIO()
        call_command("restore", str(backed_up), "--without-damaged", stdout=printed)
        assert "left out: objects/" in printed.getvalue()
        assert Job.objects.filter(name="running").exists()
        assert "athanor_restore" not in connection.introspection.table_names()
        with pytest.raises(CommandError, match="has [0-9]+ tables"):
            call_command("restore", str(backed_up), stdout=StringIO())


def killed(place: Path, elsewhere: Elsewhere, is_time: Callable[[], bool]) -> None:
    """Start a restore as an operator does, and kill it when it is time."""
    urls = {
        name: f"{os.environ[name].rpartition('/')[0]}/{elsewhere.database}"
        for name in ("DATABASE_URL", "ATHANOR_MIGRATION_DATABASE_URL")
    }
    environment = {**os.environ, **urls, "ATHANOR_S3_BUCKET": elsewhere.bucket}
    running = subprocess.Popen(
        [sys.executable, "manage.py", "restore", str(place)],
        cwd=REPOSITORY, env=with_repository_on_path(environment), stdout=subprocess.DEVNULL,
    )  # fmt: skip
    wait_until(is_time, "it is time to kill the restore", 60)
    running.send_signal(signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL, "it ended before it was killed"


def damage(place: Path) -> None:
    """Change an object without changing its size."""
    path = min(path for path in place.glob("objects/*/*"))
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def tables_of(elsewhere: Elsewhere) -> list[str]:
    with entered(elsewhere, configured):
        return connection.introspection.table_names()
