from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies: ClassVar = [("scheduling", "0001_initial")]
    operations: ClassVar = [
        migrations.AddField(
            model_name="startestimate",
            name=name,
            field=models.PositiveIntegerField(default=0),
            preserve_default=False,
        )
        for name in ("raw_p50_seconds", "raw_p90_seconds")
    ]
