"""Migrations after the first release work with the programs of the version before, and lock no large table for long.

The rules are checked on the SQL of each migration (docs/contributing/release.md). The version before inserts rows
without the new columns, and reads each column that it knows. A statement that scans or indexes a table that exists
locks its rows for as long as that takes.
"""

import re
from collections.abc import Sequence

import pytest
from django.db import connection, models
from django.db.migrations import AddField, AddIndex, Migration, RemoveField, RunSQL
from django.db.migrations.loader import MigrationLoader

pytestmark = pytest.mark.django_db
# The newest migrations of 0.1.0, the first release: nothing was installed before.
FIRST_RELEASE = {
    "accounts": "0016_work_failures", "artifacts": "0020_scrub", "budgets": "0007_goodput_of_teams",
    "clusters": "0010_spare_nodes", "compliance": "0001_initial", "jobs": "0023_replaced_nodes",
    "operations": "0005_reconciler_failures",
    "quotas": "0003_nominal_changes", "scheduling": "0004_retention",
    "telemetry": "0007_system_series", "webhooks": "0003_names_of_things",
}  # fmt: skip
REMOVES = "the version before still uses it; if it does not, set `unused_since` of the migration to that version"
RULES = {
    r"DROP (COLUMN|TABLE)\b": REMOVES,
    r"\bRENAME (TO|COLUMN)\b": REMOVES,
    r"ALTER COLUMN \S+ TYPE\b": "it may rewrite the table under a lock: add a column of the new type beside it",
    r"ALTER COLUMN \S+ SET NOT NULL\b": "it scans the table under a lock, and the version before may insert null",
    r"ALTER COLUMN \S+ DROP DEFAULT\b": "the version before inserts rows without the column: use db_default",
    r"ADD COLUMN (?!.*\bDEFAULT\b).*\bNOT NULL\b": "the version before inserts rows without it: use db_default",
    r"CREATE (UNIQUE )?INDEX (?!CONCURRENTLY)": "writes wait until it is built: use AddIndexConcurrently",
    r"ADD CONSTRAINT (?!.*\bUSING INDEX\b).*\b(UNIQUE|EXCLUDE)\b": "writes wait for its index: build that before",
    r"ADD CONSTRAINT (?!.*NOT VALID).*\bCHECK\b": "it scans the table under a lock: use AddConstraintNotValid",
}
TABLE = re.compile(r'(?:ALTER TABLE|CREATE TABLE|DROP TABLE|INDEX .*? ON)\s+(?:ONLY\s+|IF EXISTS\s+)*"?(\w+)"?')


def problems(statements: Sequence[str], *, unused_since: str = "") -> list[str]:
    """Return what is wrong with the SQL of a migration. Tables that it creates itself are empty."""
    made = {found[1] for sql in statements if sql.startswith("CREATE TABLE") and (found := TABLE.search(sql))}
    wrong = []
    for sql in statements:
        table = TABLE.search(sql)
        if sql.startswith("--") or (table and table[1] in made):
            continue
        for pattern, remedy in RULES.items():
            if re.search(pattern, sql) and not (remedy is REMOVES and unused_since):
                wrong.append(f"{sql}: {remedy}")
    return wrong


def sql_of(migration: Migration, loader: MigrationLoader) -> list[str]:
    """Return the statements of a migration."""
    statements: list[str] = loader.collect_sql([(migration, False)])
    return [" ".join(sql.split()) for sql in statements]


def test_migrations_since_the_first_release_only_expand() -> None:
    loader = MigrationLoader(connection, replace_migrations=False)
    assert {(app, name) for app, name in FIRST_RELEASE.items()} <= set(loader.disk_migrations)
    for (app, name), migration in loader.disk_migrations.items():
        if type(migration).__module__.startswith("athanor.") and name > FIRST_RELEASE.get(app, ""):
            found = problems(sql_of(migration, loader), unused_since=getattr(migration, "unused_since", ""))
            assert found == [], f"{app}/{name}"


BAD = (
    AddField("webhook", "a", models.IntegerField(default=0)),
    RemoveField("webhook", "types"),
    AddIndex("webhook", models.Index(fields=["url"], name="by_url")),
    RunSQL("ALTER TABLE webhooks_webhook ALTER COLUMN name TYPE text"),
    RunSQL("ALTER TABLE webhooks_webhook ALTER COLUMN name SET NOT NULL"),
    RunSQL("ALTER TABLE webhooks_webhook ADD CONSTRAINT c CHECK (position > 0)"),
    RunSQL("ALTER TABLE webhooks_webhook RENAME COLUMN name TO title"),
    RunSQL("ALTER TABLE webhooks_webhook ADD CONSTRAINT c UNIQUE (url)"),
)
GOOD = (
    AddField("webhook", "a", models.IntegerField(db_default=0)),
    AddField("webhook", "a", models.IntegerField(null=True)),
    RunSQL("ALTER TABLE webhooks_webhook ADD CONSTRAINT c CHECK (position > 0) NOT VALID"),
    RunSQL("CREATE INDEX CONCURRENTLY by_url ON webhooks_webhook (url)"),
    RunSQL("ALTER TABLE webhooks_webhook ADD CONSTRAINT c UNIQUE USING INDEX by_url"),
    RunSQL("CREATE TABLE new (id int NOT NULL); CREATE INDEX i ON new (id)"),
)


def migration_of(operation: object) -> Migration:
    """Return a migration of the webhooks, after their last one."""
    migration = Migration("0999_made_up", "webhooks")
    migration.operations = [operation]
    migration.dependencies = [("webhooks", FIRST_RELEASE["webhooks"])]
    return migration


def loader_with(migration: Migration) -> MigrationLoader:
    loader = MigrationLoader(connection, replace_migrations=False)
    key = (migration.app_label, migration.name)
    loader.disk_migrations[key] = migration
    loader.graph.add_node(key, migration)
    loader.add_external_dependencies(key, migration)
    loader.graph.add_dependency(migration, key, migration.dependencies[0])
    return loader


@pytest.mark.parametrize("operation", BAD, ids=lambda operation: operation.describe()[:40])
def test_what_would_break_the_version_before_or_lock_a_table_is_found(operation: object) -> None:
    migration = migration_of(operation)
    assert len(problems(sql_of(migration, loader_with(migration)))) == 1


@pytest.mark.parametrize("operation", GOOD, ids=lambda operation: operation.describe()[:40])
def test_what_expands_passes(operation: object) -> None:
    migration = migration_of(operation)
    assert problems(sql_of(migration, loader_with(migration))) == []


def test_what_a_version_before_did_not_use_may_be_removed() -> None:
    migration = migration_of(RemoveField("webhook", "types"))
    assert problems(sql_of(migration, loader_with(migration)), unused_since="0.1.0") == []
