"""Row-level security, as defence in depth behind the queries' own filters by team.

The session setting `athanor.teams` names the teams whose rows a session reads and writes. Policies on every table with
a team's work (created by `protect` in migrations) check it, for the runtime role and for the tables' owner alike. Empty
or `*` means all teams: workers and commands. Sessions of the web server start with `-`, no team; each request is
restricted to the teams of its authenticated caller, and the setting is reset when the request ends (core/postgresql).
So a query that forgets to filter by team finds nothing instead of everything.

It needs a database session per connection: a pooler in front of PostgreSQL must pool sessions, not transactions.
Backups by the tables' owner need `pg_dump --enable-row-security`; `manage.py backup` takes care of it.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from django.core.signals import request_finished
from django.db import connection, transaction
from django.db.migrations import RunSQL

ALL = "*"
NOBODY = "-"

# PostgreSQL inlines these functions into a policy: there is no call per row.
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
    """Return the migration operation that enables a policy: only rows that meet `condition` are read or written."""
    return RunSQL(
        f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY; ALTER TABLE {table} FORCE ROW LEVEL SECURITY;"
        f"CREATE POLICY of_a_team ON {table} USING ({condition});",
        f"DROP POLICY of_a_team ON {table};"
        f"ALTER TABLE {table} NO FORCE ROW LEVEL SECURITY; ALTER TABLE {table} DISABLE ROW LEVEL SECURITY;",
    )


def through(table: str, parent: str, column: str) -> RunSQL:
    """Return a policy by which a row is visible if the row of `parent` that `column` refers to is visible."""
    return protect(
        table,
        f"athanor_sees_all() OR EXISTS (SELECT 1 FROM {parent} parent WHERE parent.id = {table}.{column})",  # noqa: S608 - names from migrations, no input
    )


def readable(table: str, condition: str) -> RunSQL:
    """Return the migration operation that lets rows that meet `condition` be read, beside those of `protect`.

    They cannot be locked, changed or deleted by it.
    """
    return RunSQL(f"CREATE POLICY shared ON {table} FOR SELECT USING ({condition});", f"DROP POLICY shared ON {table};")


def restrict(team_ids: Iterable[str]) -> None:
    """Restrict the session to the rows of these teams until the request ends."""
    _set(",".join(sorted(team_ids)) or NOBODY)


def see_all() -> None:
    """Allow all teams, for the request of an administrator in Django's admin."""
    _set(ALL)


def let_in(team_id: str) -> None:
    """Add one team to the session: the caller was just found to manage it without being a member."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('athanor.teams', true)")
        now = cursor.fetchone()[0]
    if now not in (None, "", ALL):
        _set(f"{now},{team_id}")


@contextmanager
def unrestricted() -> Iterator[None]:
    """Allow all teams within the block, for lookups before the caller is known.

    Do not use it within a transaction that may be rolled back.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('athanor.teams', true), set_config('athanor.teams', %s, false)", [ALL])
        before = cursor.fetchone()[0]
    try:
        yield
    finally:
        _set(before or "")


@contextmanager
def including(team_ids: Iterable[str]) -> Iterator[None]:
    """Add teams to the session within the block: the caller was just found to be allowed what it does there.

    The block is a transaction, so that an error in it rolls back the setting with the rest.
    """
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('athanor.teams', true)")
        now = cursor.fetchone()[0]
        if now in (None, "", ALL):
            yield
            return
        _set(",".join([now, *sorted(team_ids)]))
        yield
        _set(now)


def forget(session: Any) -> None:
    """Reset a session to its initial state."""
    session.execute("RESET athanor.teams")


def _set(value: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('athanor.teams', %s, false)", [value])


def _end_of_request(**_: Any) -> None:
    """Reset a connection that outlives the request, as in Django's test client; closing one resets it.

    A streamed response that nobody has closed ends when it is collected as garbage, which may be within a query of
    another request in this thread: that request resets the connection, and to wait for the query would last forever.
    """
    session = connection.connection
    if session is not None and not session.lock.locked() and not connection.needs_rollback:
        with connection.cursor() as cursor:
            cursor.execute("RESET athanor.teams")


request_finished.connect(_end_of_request, dispatch_uid="athanor.tenancy")
