from django.db import migrations, models
from django.db.migrations import RunSQL

# Nobody knows when the provider last vouched for users of before: their time starts with the upgrade.
KNOWN_TO_A_PROVIDER = """
    UPDATE accounts_user SET signed_on_at = now()
    WHERE id IN (SELECT user_id FROM socialaccount_socialaccount)
"""


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0013_idempotent_answers"),
        ("socialaccount", "0006_alter_socialaccount_extra_data"),
    ]

    operations = [
        migrations.AddField(
            model_name="user",
            name="signed_on_at",
            field=models.DateTimeField(blank=True, editable=False, null=True),
        ),
        migrations.AddField(model_name="team", name="deleted_at", field=models.DateTimeField(editable=False, null=True)),
        RunSQL(KNOWN_TO_A_PROVIDER, RunSQL.noop),
    ]
