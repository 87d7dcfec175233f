from typing import ClassVar

import django.db.models.deletion
from django.db import migrations, models

import athanor.core.ids
from athanor.core import tenancy


class Migration(migrations.Migration):
    dependencies: ClassVar = [("artifacts", "0003_row_security"), ("jobs", "0010_job_more_dataset_ids")]
    operations: ClassVar = [
        migrations.AlterField(
            model_name="artifact",
            name="kind",
            field=models.CharField(choices=[("model", "Model"), ("log", "Log"), ("profile", "Profile")], max_length=10),
        ),
        migrations.RemoveConstraint(model_name="artifact", name="one_artifact_of_a_kind_per_attempt"),
        migrations.AddConstraint(
            model_name="artifact",
            constraint=models.UniqueConstraint(
                condition=models.Q(("kind", "profile"), _negated=True),
                fields=("attempt", "kind"),
                name="one_artifact_of_a_kind_per_attempt",
            ),
        ),
        migrations.CreateModel(
            name="Profile",
            fields=[
                ("id", models.CharField(default=athanor.core.ids.profile_id, editable=False, max_length=40, primary_key=True, serialize=False)),
                ("number", models.PositiveIntegerField()),
                ("steps", models.PositiveIntegerField()),
                ("state", models.CharField(choices=[("requested", "Requested"), ("ready", "Ready"), ("failed", "Failed")], default="requested", max_length=10)),
                ("reason", models.TextField(blank=True, default="")),
                ("first_step", models.PositiveIntegerField(null=True)),
                ("last_step", models.PositiveIntegerField(null=True)),
                ("nodes", models.JSONField(default=dict)),
                ("requested_by", models.CharField(max_length=150)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("finished_at", models.DateTimeField(null=True)),
                ("artifact", models.OneToOneField(null=True, on_delete=django.db.models.deletion.PROTECT, related_name="profile", to="artifacts.artifact")),
                ("attempt", models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name="profiles", to="jobs.attempt")),
                ("job", models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name="profiles", to="jobs.job")),
            ],
        ),
        migrations.AddConstraint(
            model_name="profile",
            constraint=models.UniqueConstraint(fields=("job", "number"), name="profile_numbers_are_unique_in_a_job"),
        ),
        migrations.AddConstraint(
            model_name="profile",
            constraint=models.UniqueConstraint(
                condition=models.Q(("state", "requested")), fields=("job",), name="one_open_profile_per_job"
            ),
        ),
        tenancy.through("artifacts_profile", "jobs_job", "job_id"),
    ]
