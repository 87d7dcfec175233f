"""System checks of `manage.py check --database default`, which `migrate` runs too."""

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.core.checks import CheckMessage, Error, Tags, register
from django.db import connection
from django.db.migrations.loader import MigrationLoader


@register(Tags.database)
def check_no_newer_migrations(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **_: Any
) -> list[CheckMessage]:
    """Check that no newer code has migrated the database: this code would write rows that the newer one cannot use."""
    if not databases:
        return []
    loader = MigrationLoader(connection)
    newest: dict[str, str] = {}
    for app, name in loader.disk_migrations:
        newest[app] = max(name, newest.get(app, ""))
    # The names begin with a number. An unknown name with a smaller one is of a migration that was squashed since.
    newer = sorted(f"{app}.{name}" for app, name in loader.applied_migrations if app in newest and name > newest[app])
    if not newer:
        return []
    return [
        Error(
            f"newer code has migrated the database: this code does not know {', '.join(newer)}",
            hint="install the version that runs on this database, or restore a backup that this version has made",
            id="athanor_config.E001",
        )
    ]
