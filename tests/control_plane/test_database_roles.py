"""What somebody with the database password of web and workers can do, by a login of their own: the two roles."""

import os
from collections.abc import Iterator

import dj_database_url
import psycopg
import pytest
from django.conf import settings
from django.db import connection

from athanor.config import database_roles
from tests.control_plane.roles import as_owner

pytestmark = pytest.mark.django_db


@pytest.fixture
def attacker() -> Iterator[psycopg.Connection]:
    """A session that begins as the runtime role, not one that has become it: `RESET ROLE` changes nothing."""
    role = dj_database_url.parse(os.environ["DATABASE_URL"])
    assert role["USER"] == settings.DATABASE_RUNTIME_ROLE
    with psycopg.connect(
        host=role["HOST"], port=role["PORT"], user=role["USER"], password=role["PASSWORD"],
        dbname=connection.settings_dict["NAME"], autocommit=True,
    ) as session:  # fmt: skip
        yield session


RIGHTS = (
    "SELECT has_database_privilege('public', current_database(), 'TEMPORARY'),"
    " has_schema_privilege('public', 'public', 'CREATE')"
)
ATTACKS = [
    # Tables and their protection.
    "DROP TABLE jobs_job CASCADE",
    "TRUNCATE jobs_job CASCADE",
    "ALTER TABLE jobs_job DISABLE ROW LEVEL SECURITY",
    "ALTER TABLE jobs_job NO FORCE ROW LEVEL SECURITY",
    "DROP POLICY of_a_team ON jobs_job",
    "CREATE POLICY all_rows ON jobs_job USING (true)",
    "CREATE TRIGGER mine BEFORE INSERT ON jobs_job EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    "CREATE INDEX ON jobs_job (name)",
    "CREATE OR REPLACE FUNCTION athanor_sees_all() RETURNS boolean LANGUAGE sql AS 'SELECT true'",
    "DROP FUNCTION athanor_sees_all() CASCADE",
    # Objects of their own: what code of the owner could find first, and disks that no retention empties.
    "CREATE TABLE mine (id int)",
    "CREATE TABLE public.mine (id int)",
    "CREATE TEMPORARY TABLE mine (id int)",
    "CREATE FUNCTION public.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "CREATE SCHEMA mine",
    # The audit trail and the migrations.
    "UPDATE accounts_auditevent SET actor = 'eve'",
    "DELETE FROM accounts_auditevent",
    "ALTER TABLE accounts_auditevent DISABLE TRIGGER ALL",
    "SET session_replication_role = replica",
    "INSERT INTO django_migrations (app, name, applied) VALUES ('jobs', '9999_mine', now())",
    "DELETE FROM django_migrations",
    # Roles and the server.
    "SET ROLE athanor_migration",
    "SET SESSION AUTHORIZATION athanor_migration",
    "GRANT athanor_migration TO athanor",
    "ALTER ROLE athanor SUPERUSER",
    "ALTER ROLE athanor BYPASSRLS",
    "ALTER ROLE athanor CREATEDB",
    "ALTER ROLE athanor_migration PASSWORD 'mine'",
    "CREATE ROLE mine",
    "CREATE DATABASE mine",
    "ALTER DATABASE {database} SET athanor.teams = '*'",
    "SELECT rolpassword FROM pg_authid",
    "SELECT pg_read_file('/etc/passwd')",
    "SELECT lo_import('/etc/passwd')",
    "COPY jobs_job TO '/tmp/mine'",
    "COPY jobs_job FROM PROGRAM 'id'",
    "ALTER SYSTEM SET log_statement = 'all'",
    "SELECT pg_reload_conf()",
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'athanor_migration'",
]


@pytest.mark.parametrize("sql", ATTACKS)
def test_the_runtime_role_is_refused(attacker: psycopg.Connection, sql: str) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        attacker.execute(sql.format(database=connection.settings_dict["NAME"]))


def test_the_runtime_role_owns_nothing_and_has_no_attribute(attacker: psycopg.Connection) -> None:
    found = attacker.execute(
        "SELECT rolsuper, rolbypassrls, rolcreaterole, rolcreatedb, rolreplication,"
        " (SELECT count(*) FROM pg_shdepend WHERE refobjid = r.oid AND deptype = 'o'),"
        " (SELECT count(*) FROM pg_auth_members WHERE member = r.oid) FROM pg_roles r WHERE rolname = current_user"
    ).fetchone()
    assert found == (False, False, False, False, False, 0, 0)


def test_rights_of_every_role_are_revoked_again_by_a_migration() -> None:
    """As of a database of before: `public` open to all, temporary tables for all."""
    with as_owner(), connection.cursor() as cursor:
        database = connection.ops.quote_name(connection.settings_dict["NAME"])
        cursor.execute(f"GRANT TEMPORARY ON DATABASE {database} TO PUBLIC; GRANT CREATE ON SCHEMA public TO PUBLIC")
        cursor.execute(RIGHTS)
        assert cursor.fetchone() == (True, True)
        database_roles.grant("default", settings.DATABASE_RUNTIME_ROLE)
        cursor.execute(RIGHTS)
        assert cursor.fetchone() == (False, False)


def test_no_function_lends_the_rights_of_its_owner() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT proname FROM pg_proc WHERE prosecdef AND pronamespace = 'public'::regnamespace")
        assert cursor.fetchall() == []
