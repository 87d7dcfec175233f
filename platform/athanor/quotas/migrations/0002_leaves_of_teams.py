from typing import Any

from django.db import migrations

from athanor.core import ids


def give_leaves(apps: Any, schema_editor: Any) -> None:
    """Teams from before there was a tree keep their limits; later ones get their leaf when they are made."""
    database = schema_editor.connection.alias
    nodes = apps.get_model("quotas", "QuotaNode").objects.using(database)
    teams = apps.get_model("accounts", "Team").objects.using(database)
    if not teams.exists():
        return
    root = nodes.create(id=ids.quota_node_id(), name="organisation")
    for team in teams.order_by("id"):
        nodes.create(
            id=ids.quota_node_id(),
            parent=root,
            team=team,
            name=team.name,
            max_running_jobs=team.max_running_jobs,
            max_slots=team.max_slots,
        )


class Migration(migrations.Migration):
    dependencies = [("quotas", "0001_initial")]
    operations = [migrations.RunPython(give_leaves, migrations.RunPython.noop)]
