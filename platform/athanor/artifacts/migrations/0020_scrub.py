from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("artifacts", "0019_reasons_of_damage")]

    operations = [
        migrations.AddField("checkpoint", "verified_at", models.DateTimeField(null=True)),
        migrations.AddField("checkpoint", "verified_parts", models.PositiveIntegerField(db_default=0, default=0)),
        migrations.AddField("checkpoint", "lease_token", models.UUIDField(editable=False, null=True)),
        migrations.AddField("checkpoint", "lease_until", models.DateTimeField(editable=False, null=True)),
        migrations.AddIndex(
            "checkpoint",
            models.Index(
                condition=models.Q(damaged_at=None, deletion=None, diverged_at=None, retired_at=None),
                fields=["job", "verified_at"],
                name="checkpoints_to_verify",
            ),
        ),
        migrations.CreateModel(
            name="ScrubBudget",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("spent_until", models.DateTimeField()),
            ],
        ),
    ]
