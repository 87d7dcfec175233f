"""Code that is older than the database refuses to migrate it."""

import pytest
from django.core import checks
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db.migrations.recorder import MigrationRecorder

pytestmark = pytest.mark.django_db(transaction=True)  # as the tables' owner, as `migrate` runs


@pytest.fixture
def applied():
    """Record a migration as applied, until the test ends."""
    made = []

    def apply(app: str, name: str) -> None:
        made.append(MigrationRecorder.Migration.objects.create(app=app, name=name))

    yield apply
    for row in made:
        row.delete()


def test_a_database_that_newer_code_has_migrated_is_refused(applied) -> None:
    applied("jobs", "9001_of_next_year")
    with pytest.raises(SystemCheckError, match=r"does not know jobs\.9001_of_next_year") as refusal:
        call_command("migrate", interactive=False, verbosity=0, skip_checks=False)
    assert "install the version that runs on this database" in str(refusal.value)


@pytest.mark.parametrize(("app", "name"), [("jobs", "0001_squashed_since"), ("an_app_of_before", "9001_last")])
def test_migrations_of_earlier_code_do_no_harm(applied, app: str, name: str) -> None:
    applied(app, name)
    assert checks.run_checks(databases=["default"], tags=[checks.Tags.database]) == []
