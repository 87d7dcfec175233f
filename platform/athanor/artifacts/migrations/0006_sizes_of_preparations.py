from typing import Any

from django.db import migrations, models


def add_up(apps: Any, schema_editor: Any) -> None:
    rows = apps.get_model("artifacts", "PreparedDataset").objects.using(schema_editor.connection.alias)
    for row in rows.iterator(chunk_size=100):
        parts = [part for file in row.manifest["files"] for part in file["parts"]]
        row.size_bytes = sum(part["plaintext_size"] for part in parts)
        row.save(update_fields=["size_bytes"])


class Migration(migrations.Migration):
    dependencies = [("artifacts", "0005_forgotten_preparations")]
    operations = [
        migrations.AddField(
            model_name="prepareddataset", name="size_bytes", field=models.BigIntegerField(default=0)
        ),
        migrations.RunPython(add_up, migrations.RunPython.noop),
    ]
