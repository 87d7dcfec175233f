"""The second wall between teams: row-level security, by a setting of the database session.

`athanor.teams` names the teams whose rows a session sees and writes. Policies on every table of a team's work (made by
`protect` in migrations) ask it, of the runtime role and of the tables' owner alike. Empty or `*` is all: workers and
commands. The web's sessions start with `-`, nobody's, and each request is restricted to the teams of the caller it was
recognised as; when its connection goes back to the pool, it is nobody's again. So a query that forgets its team finds
nothing, not everything.

It needs a database session of one's own: a pooler in front of PostgreSQL must pool sessions, not transactions. Backups
by the tables' owner need `pg_dump --enable-row-security`.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from django.core.signals import request_finished
from django.db import connection
from django.db.migrations import RunSQL

ALL = "*"
NOBODY = "-"

# In a policy's condition PostgreSQL puts these in place: no call a row.
FUNCTIONS = RunSQL(
    """
    CREATE FUNCTION athanor_sees_all() RETURNS boolean LANGUAGE sql STABLE PARALLEL SAFE AS $$
        SELECT coalesce(nullif(current_setting('athanor.teams', true), ''), '*') = '*'
    $$;
    CREATE FUNCTION athanor_sees(team_id text) RETURNS boolean LANGUAGE sql STABLE PARALLEL SAFE AS $$
        SELECT coalesce(nullif(current_setting('athanor.teams', true), ''), '*') = '*'
            OR team_id = ANY (string_to_array(current_setting('athanor.teams', true), ','))
    $$;
    """,
    "DROP FUNCTION athanor_sees(text); DROP FUNCTION athanor_sees_all();",
)


def protect(table: str, condition: str = "athanor_sees(team_id)") -> RunSQL:
    """Only rows that meet `condition` are seen or written. For a migration."""
    return RunSQL(
        f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY; ALTER TABLE {table} FORCE ROW LEVEL SECURITY;"
        f"CREATE POLICY of_a_team ON {table} USING ({condition});",
        f"DROP POLICY of_a_team ON {table};"
        f"ALTER TABLE {table} NO FORCE ROW LEVEL SECURITY; ALTER TABLE {table} DISABLE ROW LEVEL SECURITY;",
    )


def through(table: str, parent: str, column: str) -> RunSQL:
    """Rows are seen with the row of `parent` that `column` refers to, which has a policy of its own."""
    return protect(
        table,
        f"athanor_sees_all() OR EXISTS (SELECT 1 FROM {parent} parent WHERE parent.id = {table}.{column})",  # noqa: S608 - names from migrations, no input
    )


def restrict(team_ids: Iterable[str]) -> None:
    """From here to the end of the request only these teams' rows are there."""
    _set(",".join(sorted(team_ids)) or NOBODY)


def see_all() -> None:
    """For the request of an administrator in Django's admin."""
    _set(ALL)


def let_in(team_id: str) -> None:
    """To one team more: who was just found to manage it without belonging to it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('athanor.teams', true)")
        now = cursor.fetchone()[0]
    if now not in (None, "", ALL):
        _set(f"{now},{team_id}")


@contextmanager
def unrestricted() -> Iterator[None]:
    """For what must look before it knows whom it serves. Not within a transaction that may be rolled back."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('athanor.teams', true), set_config('athanor.teams', %s, false)", [ALL])
        before = cursor.fetchone()[0]
    try:
        yield
    finally:
        _set(before or "")


def forget(session: Any) -> None:
    """Reset a connection that returns to psycopg's pool to its initial state."""
    session.execute("RESET athanor.teams")


def _set(value: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('athanor.teams', %s, false)", [value])


def _end_of_request(**_: Any) -> None:
    """Where the connection outlives the request, as in Django's test client. A closed one is reset by its pool."""
    if connection.connection is not None and not connection.needs_rollback:
        with connection.cursor() as cursor:
            cursor.execute("RESET athanor.teams")


request_finished.connect(_end_of_request, dispatch_uid="athanor.tenancy")
