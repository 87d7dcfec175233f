import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    """Take over the table `operations_erasure`, which keeps its name."""

    initial = True
    dependencies = [
        ("operations", "0003_erasure"),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.CreateModel(
                    name="Erasure",
                    fields=[
                        ("deletion", models.OneToOneField(on_delete=django.db.models.deletion.PROTECT, primary_key=True, related_name="+", serialize=False, to="artifacts.deletion")),
                        ("team_name", models.CharField(max_length=63)),
                        ("keys", models.JSONField(default=dict)),
                        ("keys_destroyed_at", models.DateTimeField()),
                        ("cursor", models.CharField(blank=True, default="", max_length=40)),
                        ("num_jobs", models.BigIntegerField(default=0)),
                        ("num_objects", models.BigIntegerField(default=0)),
                        ("num_bytes", models.BigIntegerField(default=0)),
                        ("claimed_until", models.DateTimeField(null=True)),
                        ("certificate", models.JSONField(null=True)),
                        ("team", models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name="+", to="accounts.team")),
                    ],
                    options={"db_table": "operations_erasure"},
                ),
            ],
        ),
    ]
