import athanor.core.ids
import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    """Take over the table `operations_simulation`, which keeps its name."""

    dependencies = [
        ("scheduling", "0002_raw_forecasts"),
        ("operations", "0003_erasure"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.CreateModel(
                    name="Simulation",
                    fields=[
                        ("lease_token", models.UUIDField(editable=False, null=True)),
                        ("lease_until", models.DateTimeField(editable=False, null=True)),
                        ("id", models.CharField(default=athanor.core.ids.simulation_id, editable=False, max_length=40, primary_key=True, serialize=False)),
                        ("created_at", models.DateTimeField(default=django.utils.timezone.now)),
                        ("started_at", models.DateTimeField(null=True)),
                        ("ended_at", models.DateTimeField(null=True)),
                        ("tries", models.PositiveSmallIntegerField(default=0)),
                        ("request", models.JSONField()),
                        ("result", models.JSONField(null=True)),
                        ("error", models.TextField(blank=True, default="")),
                        ("created_by", models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name="+", to=settings.AUTH_USER_MODEL)),
                    ],
                    options={"db_table": "operations_simulation"},
                ),
            ],
        ),
    ]
