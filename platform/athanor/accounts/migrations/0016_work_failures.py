from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("accounts", "0015_sign_on_checks")]

    operations = [
        migrations.CreateModel(
            name="WorkFailure",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("task", models.CharField(max_length=60)),
                ("work", models.CharField(max_length=150)),
                ("tries", models.PositiveIntegerField(default=0)),
                ("first_at", models.DateTimeField()),
                ("last_at", models.DateTimeField(db_index=True)),
                ("next_try_at", models.DateTimeField()),
                ("given_up_at", models.DateTimeField(null=True)),
                ("error", models.TextField(blank=True, default="")),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("task", "work"), name="one_failure_per_work")],
            },
        ),
    ]
