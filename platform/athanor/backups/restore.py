"""Restore a backup into an empty database and an empty bucket.

All that can be checked without writing is checked first. Then the objects are copied, and at the end the tables are
filled in one transaction. A table in the database, `athanor_restore`, says what is being restored: a restore that was
killed continues when it is started again, with the objects that it has copied, and nothing else can be restored in
between.
"""

from collections.abc import Callable
from dataclasses import dataclass

from django.core.management import call_command
from django.db import connection, transaction
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.recorder import MigrationRecorder

from athanor.accounts import audit
from athanor.artifacts import storage
from athanor.backups import tables, verify
from athanor.backups.destination import workers
from athanor.backups.manifest import BackupManifest, OpenBackup
from athanor.core import advisory_locks
from athanor.core.errors import Conflict, Invalid

ACTOR = "operator"
MARKER = "athanor_restore"
MAX_NAMED = 50
WAIT_FOR_KILLED = "1min"  # until the database has noticed that a client was killed
FUNCTIONS = """
    SELECT oid::regprocedure::text FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND prokind = 'f'
        AND NOT EXISTS (SELECT 1 FROM pg_depend WHERE objid = pg_proc.oid AND deptype = 'e')
"""
Report = Callable[[str], None]


@dataclass(frozen=True)
class _Progress:
    """The row of the marker."""

    backup_id: str
    bucket: str
    is_loaded: bool


def restore(backup: OpenBackup, report: Report, *, without_damaged: bool = False) -> list[str]:
    """Restore a backup. Return the problems of its objects, which are left out with `without_damaged`.

    Raise Conflict for a database or bucket that is not empty, Invalid for a backup of a newer version, and for one
    that is damaged. Needs the rights of the tables' owner.
    """
    if not advisory_locks.lock(advisory_locks.RESTORES, WAIT_FOR_KILLED):
        raise Conflict("restore_runs", "another restore into this database is running", remedy="wait for its end")
    try:
        return _restore(backup, report, without_damaged=without_damaged)
    finally:
        advisory_locks.unlock(advisory_locks.RESTORES)


def _restore(backup: OpenBackup, report: Report, *, without_damaged: bool) -> list[str]:
    _check_version(backup.manifest)
    progress = _progress()
    if progress is None:
        _check_empty()
    elif (progress.backup_id, progress.bucket) != (backup.manifest.id, storage.bucket()):
        raise Conflict(
            "other_restore",
            f"{progress.backup_id} is being restored into this database and the bucket {progress.bucket}",
            remedy="finish that by the same command, or create another database",
        )
    problems = []
    if progress is None or not progress.is_loaded:
        report(f"{backup.manifest.id}: checking the copy of the database and the sizes of objects")
        _refuse_damaged(list(verify.problems_of_files(backup)))
        problems = list(verify.problems_of_sizes(backup))
        if not without_damaged:
            _refuse_damaged(problems)
        _begin(backup.manifest)
        report(f"{backup.manifest.id}: copying {backup.manifest.num_objects} objects to {storage.bucket()}")
        problems = _copy_objects(backup)
        if not without_damaged:
            _refuse_damaged(problems)
        report(f"{backup.manifest.id}: filling the database")
        _remove_tables()
        _migrate_to(backup.manifest)
        _load(backup)
    call_command("migrate", interactive=False, verbosity=0)  # to this version, with the rights of the runtime role
    _end(backup.manifest)
    return problems


def _check_version(manifest: BackupManifest) -> None:
    known = set(MigrationExecutor(connection).loader.disk_migrations)
    unknown = sorted(f"{app}.{name}" for app, name in manifest.migrations if (app, name) not in known)
    if unknown:
        raise Invalid(
            "newer_backup",
            f"{manifest.id} was made by version {manifest.version}, whose database has migrations that this version "
            f"does not know: {', '.join(unknown)}",
            remedy=f"restore with version {manifest.version} or newer",
        )


def _progress() -> _Progress | None:
    if MARKER not in connection.introspection.table_names():
        return None
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT backup_id, bucket, is_loaded FROM {MARKER}")  # noqa: S608 - a constant
        row = cursor.fetchone()
    return _Progress(*row) if row else None


def _check_empty() -> None:
    found = [name for name in connection.introspection.table_names() if name != MARKER]
    if found:
        raise Conflict(
            "database_not_empty",
            f"the database {connection.settings_dict['NAME']} has {len(found)} tables, such as {found[0]}",
            remedy="create an empty database, and name it in DATABASE_URL and ATHANOR_MIGRATION_DATABASE_URL",
        )
    storage.ensure_bucket()
    if items := storage.page("", limit=1).items:
        raise Conflict(
            "bucket_not_empty",
            f"the bucket {storage.bucket()} has objects, such as {items[0].key}",
            remedy="name an empty bucket, or one that does not exist yet, in ATHANOR_S3_BUCKET",
        )


def _begin(manifest: BackupManifest) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            f"CREATE TABLE IF NOT EXISTS {MARKER} (backup_id text PRIMARY KEY, bucket text NOT NULL, "
            "is_loaded boolean NOT NULL DEFAULT false)"
        )
        cursor.execute(
            f"INSERT INTO {MARKER} (backup_id, bucket) VALUES (%s, %s) ON CONFLICT DO NOTHING",  # noqa: S608 - likewise
            [manifest.id, storage.bucket()],
        )


def _copy_objects(backup: OpenBackup) -> list[str]:
    """Copy the objects that the bucket does not have yet. Return those that could not be, and why.

    The bucket was empty, so what it has was copied by an earlier run of this restore: an object exists completely or
    not at all.
    """
    there = {item.key: item.size for item in storage.listing(f"s3://{storage.bucket()}/")}
    prefix = f"s3://{storage.bucket()}/"
    problems = []
    wanted = (each for each in backup.objects() if there.get(prefix + each.key) != each.size)
    with workers() as pool:
        for batch in verify.batches(wanted):
            contents = pool.map(lambda each: verify.content_of(backup.place, each), batch)
            intact = {}
            for each, content in zip(batch, contents, strict=True):
                if isinstance(content, str):
                    problems.append(f"{each.name} {content} ({each.key})")
                else:
                    intact[each.key] = content
            list(pool.map(storage.put, intact.keys(), intact.values()))
    return problems


def _refuse_damaged(problems: list[str]) -> None:
    if not problems:
        return
    more = [f"and {len(problems) - MAX_NAMED} more"] if len(problems) > MAX_NAMED else []
    named = "\n".join([*problems[:MAX_NAMED], *more])
    raise Invalid(
        "backup_damaged",
        f"parts of the backup are missing or damaged, and the database was not filled:\n{named}\n",
        remedy="put them back from another copy of the backup, restore another backup, or leave out such objects with "
        "--without-damaged",
    )


def _remove_tables() -> None:
    """Remove what a restore that was killed has made: it may have been killed between a migration and its record."""
    tables_of_it = [name for name in connection.introspection.table_names() if name != MARKER]
    with transaction.atomic(), connection.cursor() as cursor:
        for name in tables_of_it:
            cursor.execute(f"DROP TABLE IF EXISTS {connection.ops.quote_name(name)} CASCADE")
        cursor.execute(FUNCTIONS)
        for (function,) in cursor.fetchall():
            cursor.execute(f"DROP FUNCTION {function} CASCADE")


def _migrate_to(manifest: BackupManifest) -> None:
    """Make the tables as they were when the backup was made."""
    executor = MigrationExecutor(connection)
    recorded = set(manifest.migrations)
    graph = executor.loader.graph
    last = [
        node for node in sorted(recorded)
        if not any(child.key in recorded and child.key[0] == node[0] for child in graph.node_map[node].children)
    ]  # fmt: skip
    executor.migrate(last)
    applied = set(MigrationRecorder(connection).applied_migrations())
    assert applied == recorded, f"migrations differ from the backup's: {applied ^ recorded}"


def _load(backup: OpenBackup) -> None:
    manifest = backup.manifest
    with transaction.atomic(durable=True):
        with tables.replaced(manifest.tables):
            for table in manifest.tables:
                tables.copy_in(table, backup.read(manifest.file(table.path)))
            tables.set_sequences(manifest.sequences)
        with connection.cursor() as cursor:
            cursor.execute(f"UPDATE {MARKER} SET is_loaded = true")  # noqa: S608 - likewise


def _end(manifest: BackupManifest) -> None:
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(f"DROP TABLE {MARKER}")
        facts = {"made_at": manifest.created_at.isoformat(), "version": manifest.version}
        audit.record("backup.restore", actor=ACTOR, target=("backup", manifest.id), after=facts)
