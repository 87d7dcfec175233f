import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

import athanor.core.ids
from athanor.core import tenancy

DELETION = models.ForeignKey(
    null=True, on_delete=django.db.models.deletion.PROTECT, related_name="+", to="artifacts.deletion"
)


class Migration(migrations.Migration):
    dependencies = [
        ("artifacts", "0008_manifests_are_authenticated"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Deletion",
            fields=[
                ("id", models.CharField(default=athanor.core.ids.deletion_id, editable=False, max_length=40, primary_key=True, serialize=False)),
                ("kind", models.CharField(choices=[("job", "Job"), ("artifact", "Artifact"), ("checkpoint", "Checkpoint"), ("dataset", "Dataset")], max_length=10)),
                ("target_id", models.CharField(max_length=40)),
                ("name", models.CharField(max_length=300)),
                ("size_bytes", models.BigIntegerField()),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("purge_after", models.DateTimeField()),
                ("purge_started_at", models.DateTimeField(null=True)),
                ("purged_at", models.DateTimeField(null=True)),
                ("restored_at", models.DateTimeField(null=True)),
                ("deleted_by", models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name="+", to=settings.AUTH_USER_MODEL)),
                ("team", models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name="+", to="accounts.team")),
            ],
        ),
        migrations.AddIndex(
            model_name="deletion",
            index=models.Index(
                condition=models.Q(("purged_at", None), ("restored_at", None)),
                fields=["purge_after"],
                name="deletions_to_purge",
            ),
        ),
        migrations.AddField(model_name="artifact", name="deletion", field=DELETION.clone()),
        migrations.AddField(model_name="checkpoint", name="deletion", field=DELETION.clone()),
        migrations.AddField(model_name="dataset", name="deletion", field=DELETION.clone()),
        migrations.AddField(
            model_name="dataset", name="tag", field=models.CharField(blank=True, default="", max_length=1000)
        ),
        tenancy.protect("artifacts_deletion"),
    ]
