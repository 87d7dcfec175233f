"""Two database roles: one owns the tables and migrates them, the other runs web and workers and owns nothing.

`manage.py migrate` connects by ATHANOR_MIGRATION_DATABASE_URL and ends by granting the role of DATABASE_URL what it
needs. It may add records to the audit trail and move its head, and cannot change or remove a record, disable a
trigger or truncate a table. Without ATHANOR_MIGRATION_DATABASE_URL one role does both.
"""

from typing import Any

from django.conf import settings
from django.core.management.base import CommandError
from django.db import connections

AUDIT = "accounts_auditevent"
# What the runtime role may do with a table, where it is not everything.
RESTRICTED = {
    AUDIT: "SELECT, INSERT",
    "accounts_audithead": "SELECT, INSERT, UPDATE",
    "django_migrations": "SELECT",
}


def grant_after_migrate(sender: Any, using: str, **_: Any) -> None:
    """Grant the runtime role its rights. Connected to post_migrate of one application: by then all have migrated."""
    grant(using, settings.DATABASE_RUNTIME_ROLE)


def grant(using: str, role: str) -> None:
    """Grant `role` what web and workers need, as the owner of the tables. Does nothing when `role` is the owner."""
    connection = connections[using]
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_user, EXISTS (SELECT 1 FROM pg_roles WHERE rolname = %s)", [role])
        current, exists = cursor.fetchone()
        if not role or role == current:
            return
        if not exists:
            raise CommandError(
                f"DATABASE_URL names the database role {role!r}, which does not exist: create it with "
                f'`CREATE ROLE "{role}" LOGIN PASSWORD ...`, or unset ATHANOR_MIGRATION_DATABASE_URL'
            )
        name = connection.ops.quote_name(role)
        _take_from_everyone(cursor)
        cursor.execute(f"GRANT USAGE ON SCHEMA public TO {name}")
        cursor.execute(f"GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA public TO {name}")
        cursor.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {name}")
        present = set(connection.introspection.table_names(cursor))
        for table, rights in RESTRICTED.items():
            if table not in present:  # migrated to an earlier version
                continue
            cursor.execute(f"REVOKE ALL ON {table} FROM {name}")
            cursor.execute(f"GRANT {rights} ON {table} TO {name}")


def _take_from_everyone(cursor: Any) -> None:
    """Revoke what every role of a server may do: make temporary tables, and before PostgreSQL 15 tables in `public`.

    PostgreSQL warns, and changes nothing, where this role owns neither the database nor the schema.
    """
    cursor.execute(
        "SELECT quote_ident(current_database()), has_database_privilege('public', current_database(), 'TEMPORARY'),"
        " has_schema_privilege('public', 'public', 'CREATE')"
    )
    database, may_have_temporary, may_create = cursor.fetchone()
    if may_have_temporary:
        cursor.execute(f"REVOKE TEMPORARY ON DATABASE {database} FROM PUBLIC")
    if may_create:
        cursor.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")


def excess_rights(using: str = "default") -> str:
    """Say what this session's role could do to the audit trail beyond adding to it; empty when nothing."""
    with connections[using].cursor() as cursor:
        cursor.execute(
            "SELECT pg_has_role(current_user, (SELECT relowner FROM pg_class WHERE oid = %s::regclass), 'MEMBER')",
            [AUDIT],
        )
        if cursor.fetchone()[0]:
            return "alter"
        rights = ("UPDATE", "DELETE", "TRUNCATE", "TRIGGER")
        found = []
        for right in rights:
            cursor.execute("SELECT has_table_privilege(%s, %s)", [AUDIT, right])
            if cursor.fetchone()[0]:
                found.append(right.lower())
    return " and ".join(found)
