import django.db.models.deletion
from django.db import migrations, models

from athanor.core import tenancy


class Migration(migrations.Migration):
    dependencies = [
        ("artifacts", "0010_uploads_are_authenticated"),
        ("jobs", "0013_admission_facts"),
        ("accounts", "0012_parts_of_the_platform_scope"),
    ]

    operations = [
        migrations.CreateModel(
            name="JobStorage",
            fields=[
                ("job", models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name="+", serialize=False, to="jobs.job")),
                ("newest_attempt", models.CharField(max_length=40)),
                ("unreferenced_objects", models.BigIntegerField(default=0)),
                ("unreferenced_bytes", models.BigIntegerField(default=0)),
                ("removed_objects", models.BigIntegerField(default=0)),
                ("removed_bytes", models.BigIntegerField(default=0)),
                ("found_objects", models.BigIntegerField(default=0)),
                ("found_bytes", models.BigIntegerField(default=0)),
                ("cursor", models.CharField(blank=True, default="", max_length=1100)),
                ("scanned_at", models.DateTimeField(null=True)),
                ("next_scan_at", models.DateTimeField(db_index=True, null=True)),
                ("team", models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name="+", to="accounts.team")),
            ],
        ),
        tenancy.protect("artifacts_jobstorage"),
    ]
