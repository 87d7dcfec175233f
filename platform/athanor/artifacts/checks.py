"""System checks of `manage.py check --database default`, which `migrate` runs too."""

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.core.checks import CheckMessage, Error, Tags, register
from django.db import connection

from athanor.artifacts import rotation
from athanor.artifacts.models import TeamKey
from athanor.core.errors import Misconfigured


@register(Tags.database)
def check_master_key(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **_: Any
) -> list[CheckMessage]:
    """Check that the master key decrypts what the database holds. A database without tables passes."""
    if not databases or TeamKey._meta.db_table not in connection.introspection.table_names():
        return []
    try:
        rotation.require_master_key()
    except Misconfigured as error:
        return [Error(str(error), hint=error.remedy, id="artifacts.E001")]
    return []
