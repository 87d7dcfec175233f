"""A backup has the rows of all teams, or is refused: COPY under row-level security leaves rows out without an error."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError
from django.db import connection

from athanor.accounts.models import Team
from athanor.artifacts.models import TeamSecret
from tests.control_plane.backups.conftest import back_up, superuser, table_rows

pytestmark = pytest.mark.django_db(transaction=True)
TABLE = "artifacts_teamsecret"


@contextmanager
def acting_as(role: str) -> Iterator[None]:
    """Act with the rights of a role. A pooled connection would give them to the next test."""
    with connection.cursor() as cursor:
        cursor.execute(f"SET ROLE {role}")
        try:
            yield
        finally:
            cursor.execute("RESET ROLE")


@pytest.fixture
def secrets(team: Team, other_team: Team) -> None:
    """A row of two teams each."""
    for each in (team, other_team):
        TeamSecret.objects.create(team=each, name="TOKEN", wrapped=b"wrapped")


@pytest.mark.usefixtures("secrets")
def test_only_a_session_that_sees_all_rows_makes_a_backup(place: Path) -> None:
    role = connection.settings_dict["USER"]
    with connection.cursor() as cursor:  # as a role may be set, and as sessions of the web server begin
        cursor.execute("SELECT set_config('athanor.teams', '-', false)")
        assert not TeamSecret.objects.exists()
        back_up(place)
        assert table_rows(place, TABLE) == 2
        cursor.execute("RESET athanor.teams")
    superuser(f"CREATE POLICY of_some ON {TABLE} AS RESTRICTIVE USING (team_id < 'a')")
    try:
        with pytest.raises(CommandError, match=rf"role '{role}'.*{TABLE} \(of_a_team, of_some\)") as refusal:
            back_up(place)
        assert f'ALTER ROLE "{role}" BYPASSRLS' in str(refusal.value)
        superuser(f'ALTER ROLE "{role}" BYPASSRLS')  # as the remedy says
        back_up(place)
        assert table_rows(place, TABLE) == 2
    finally:
        superuser(f"DROP POLICY of_some ON {TABLE}")
        superuser(f'ALTER ROLE "{role}" NOBYPASSRLS')


@pytest.mark.slow
def test_a_role_that_may_not_read_a_table_is_refused(place: Path) -> None:
    superuser("CREATE ROLE a_reader; GRANT USAGE ON SCHEMA public TO a_reader; GRANT a_reader TO athanor_migration")
    refused = pytest.raises(CommandError, match=r"role 'a_reader' may not read .*jobs_job.*GRANT SELECT ON ALL")
    try:
        with acting_as("a_reader"), refused:
            back_up(place)
    finally:
        superuser("DROP OWNED BY a_reader; DROP ROLE a_reader")


@pytest.mark.slow
@pytest.mark.usefixtures("secrets")
def test_the_role_of_web_and_workers_can_make_it(place: Path, settings: Any) -> None:
    with acting_as(settings.DATABASE_RUNTIME_ROLE):
        back_up(place)
    assert table_rows(place, TABLE) == 2
