"""Projects become records; each that a job names is there from now on."""

from typing import Any, ClassVar

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models
from django.utils import timezone

from athanor.core import ids


def from_jobs(apps: Any, schema_editor: Any) -> None:
    job, project = apps.get_model("jobs", "Job"), apps.get_model("jobs", "Project")
    alias = schema_editor.connection.alias
    named = job.objects.using(alias).order_by("team_id", "project", "created_at").distinct("team_id", "project")
    project.objects.using(alias).bulk_create(
        project(
            id=ids.project_id(),
            team_id=team_id,
            name=name,
            created_by_id=user_id,
            created_at=created_at,
        )
        for team_id, name, user_id, created_at in named.values_list(
            "team_id", "project", "created_by_id", "created_at"
        )
    )


class Migration(migrations.Migration):
    dependencies: ClassVar = [
        ("accounts", "0005_membership_source"),
        ("jobs", "0006_absence_since_and_live_attempts"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]
    operations: ClassVar = [
        migrations.CreateModel(
            name="Project",
            fields=[
                (
                    "id",
                    models.CharField(
                        default=ids.project_id, editable=False, max_length=40, primary_key=True, serialize=False
                    ),
                ),
                ("name", models.CharField(max_length=100)),
                ("description", models.TextField(blank=True, default="")),
                ("created_at", models.DateTimeField(default=timezone.now)),
                ("archived_at", models.DateTimeField(blank=True, null=True)),
                (
                    "created_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "team",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="projects", to="accounts.team"
                    ),
                ),
            ],
        ),
        migrations.AddConstraint(
            model_name="project",
            constraint=models.UniqueConstraint(fields=("team", "name"), name="project_name_is_unique_in_a_team"),
        ),
        migrations.RunPython(from_jobs, migrations.RunPython.noop),
    ]
