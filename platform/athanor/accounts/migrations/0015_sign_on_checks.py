import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("accounts", "0014_life_cycle")]

    operations = [
        migrations.AddField(
            model_name="user",
            name="sign_on_refused_at",
            field=models.DateTimeField(blank=True, editable=False, null=True),
        ),
        migrations.CreateModel(
            name="SignOnGrant",
            fields=[
                ("lease_token", models.UUIDField(editable=False, null=True)),
                ("lease_until", models.DateTimeField(editable=False, null=True)),
                (
                    "user",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="sign_on_grant",
                        serialize=False,
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                ("encrypted", models.BinaryField(help_text="by the master key")),
                ("next_check_at", models.DateTimeField(db_index=True)),
            ],
            options={"abstract": False},
        ),
    ]
