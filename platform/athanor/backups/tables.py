"""The rows of the database, by COPY: written from one snapshot, and loaded into tables that migrations have made.

COPY under row-level security leaves out the rows that the session may not see, without an error. So the session sees
all teams, and a table with any other policy than the platform's own is refused, unless the role bypasses them all.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from django.apps import apps
from django.db import connection, transaction
from django.db.migrations.recorder import MigrationRecorder
from psycopg import sql

from athanor.backups.manifest import Table
from athanor.core import tenancy
from athanor.core.errors import Misconfigured

POLICY, SHARED = "of_a_team", "shared"  # the names of the policies that `tenancy.protect` and `tenancy.readable` make
NOT_READABLE = """
    SELECT relname FROM pg_class WHERE oid = ANY (%s::regclass[]) AND NOT has_table_privilege(oid, 'SELECT')
"""
# Tables under row-level security for this role, without the policy of `tenancy.protect`, or with another one than that
# and that of `tenancy.readable`, which only adds rows.
FILTERED = f"""
    SELECT relation.relname, coalesce(string_agg(policy.polname, ', ' ORDER BY policy.polname), 'none')
    FROM pg_class relation LEFT JOIN pg_policy policy ON policy.polrelid = relation.oid
    WHERE relation.oid = ANY (%s::regclass[]) AND row_security_active(relation.oid)
    GROUP BY relation.relname
    HAVING NOT coalesce(bool_or(policy.polname = '{POLICY}'
        AND pg_get_expr(policy.polqual, policy.polrelid) LIKE '%%athanor_sees%%'), false)
        OR bool_or(policy.polname NOT IN ('{POLICY}', '{SHARED}') OR NOT policy.polpermissive)
    ORDER BY relation.relname
"""  # noqa: S608 - a constant
COLUMNS = """
    SELECT attname FROM pg_attribute
    WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attnum
"""
SEQUENCES = "SELECT sequencename, coalesce(last_value, 0) FROM pg_sequences WHERE schemaname = 'public'"
FORCED = "SELECT relname FROM pg_class WHERE oid = ANY (%s::regclass[]) AND relforcerowsecurity"
OTHER_TABLES = """
    SELECT relname FROM pg_class
    WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND relname <> ALL (%s) ORDER BY relname
"""


def names() -> list[str]:
    """Return the tables of all models, but not that of applied migrations, which are in the manifest."""
    return sorted({model._meta.db_table for model in apps.get_models(include_auto_created=True)})


def other_tables() -> list[str]:
    """Return the tables of the database that no model has."""
    with connection.cursor() as cursor:
        cursor.execute(OTHER_TABLES, [[*names(), MigrationRecorder.Migration._meta.db_table]])
        return [row[0] for row in cursor.fetchall()]


@contextmanager
def snapshot() -> Iterator[None]:
    """Read one state of the database within the block, with the rows of all teams.

    Raise Misconfigured if this role may not read all rows of all tables.
    """
    with transaction.atomic(durable=True):
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            cursor.execute("SELECT set_config('athanor.teams', %s, true)", [tenancy.ALL])
        _require_all_rows()
        yield


def _require_all_rows() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_user")
        role = cursor.fetchone()[0]
        cursor.execute(NOT_READABLE, [names()])
        if closed := [row[0] for row in cursor.fetchall()]:
            raise Misconfigured(
                "backup_role_may_not_read",
                f"the database role {role!r} may not read {', '.join(closed)}",
                remedy=f'as the tables\' owner: GRANT SELECT ON ALL TABLES IN SCHEMA public TO "{role}"',
            )
        cursor.execute(FILTERED, [names()])
        if filtered := [f"{table} ({policies})" for table, policies in cursor.fetchall()]:
            raise Misconfigured(
                "backup_role_does_not_see_all_rows",
                f"row-level security may hide rows from the database role {role!r}: tables with other policies than "
                f"{POLICY} and {SHARED}: {'; '.join(filtered)}",
                remedy=f'drop these policies, or as a superuser: ALTER ROLE "{role}" BYPASSRLS',
            )


def columns_of(table: str) -> list[str]:
    """Return the columns of a table that are stored, in their order."""
    with connection.cursor() as cursor:
        cursor.execute(COLUMNS, [table])
        return [row[0] for row in cursor.fetchall()]


def copy_out(table: str, columns: list[str]) -> Iterator[bytes]:
    """Yield the rows of a table in the text format of COPY: one line each."""
    statement = sql.SQL("COPY {} ({}) TO STDOUT").format(sql.Identifier(table), _list_of(columns))
    with connection.connection.cursor() as cursor, cursor.copy(statement) as copy:
        for block in copy:
            yield bytes(block)


def sequences() -> dict[str, int]:
    """Return the last value of each sequence; 0 if it was not used yet."""
    with connection.cursor() as cursor:
        cursor.execute(SEQUENCES)
        return dict(cursor.fetchall())


@contextmanager
def replaced(tables: list[Table]) -> Iterator[None]:
    """Empty these tables, which the block then fills by `copy_in`, in the caller's transaction.

    Neither triggers nor policies apply within the block; foreign keys are checked at its end. Needs the owner's rights.
    """
    named = [sql.Identifier(table.name) for table in tables]
    with connection.cursor() as cursor:
        cursor.execute(FORCED, [[table.name for table in tables]])
        forced = [sql.Identifier(row[0]) for row in cursor.fetchall()]
        for name in named:
            _execute("ALTER TABLE {} DISABLE TRIGGER USER, NO FORCE ROW LEVEL SECURITY", name)
        _execute("TRUNCATE {}", sql.SQL(", ").join(named))
        yield
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")  # a table with pending checks cannot be altered
        for name in named:
            _execute("ALTER TABLE {} ENABLE TRIGGER USER", name)
        for name in forced:
            _execute("ALTER TABLE {} FORCE ROW LEVEL SECURITY", name)


def copy_in(table: Table, content: Iterable[bytes]) -> None:
    """Insert the rows of a table."""
    statement = sql.SQL("COPY {} ({}) FROM STDIN").format(sql.Identifier(table.name), _list_of(table.columns))
    with connection.connection.cursor() as cursor:
        with cursor.copy(statement) as copy:
            for block in content:
                copy.write(block)
        assert cursor.rowcount == table.rows, f"{table.name}: {cursor.rowcount} rows instead of {table.rows}"


def set_sequences(last_values: dict[str, int]) -> None:
    """Continue each sequence after its last value."""
    with connection.cursor() as cursor:
        for name, value in last_values.items():
            cursor.execute("SELECT setval(%s::regclass, %s, %s)", [name, max(value, 1), value > 0])


def _execute(statement: str, name: sql.Composable) -> None:
    connection.connection.execute(sql.SQL(statement).format(name))


def _list_of(columns: list[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, columns))
