"""Progress loses `timings`: they are computed from events (jobs/timeline.py).

The column stays, with a default, since the previous release writes it; the next one may drop it.
"""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0005_mean_throughput")]

    operations = [
        migrations.AlterField("progress", "timings", models.JSONField(default=dict, db_default={})),
        migrations.SeparateDatabaseAndState(state_operations=[migrations.RemoveField("progress", "timings")]),
    ]
