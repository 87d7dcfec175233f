from typing import Any

from django.db import migrations

from athanor.core import ids


def give_leaves(apps: Any, schema_editor: Any) -> None:
    """Teams from before there was a tree; later ones get their leaf when they are made."""
    nodes, teams = apps.get_model("quotas", "QuotaNode"), apps.get_model("accounts", "Team")
    if not teams.objects.exists():
        return
    root = nodes.objects.create(id=ids.quota_node_id(), name="organisation")
    for team in teams.objects.order_by("id"):
        nodes.objects.create(id=ids.quota_node_id(), parent=root, team=team, name=team.name)


class Migration(migrations.Migration):
    dependencies = [("quotas", "0001_initial")]
    operations = [migrations.RunPython(give_leaves, migrations.RunPython.noop)]
