from django.db import migrations, models
from django.utils import timezone


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0010_audit_head_is_authenticated"),
    ]

    operations = [
        # Counts of minutes, by keys that mean something else now.
        migrations.RunSQL("DELETE FROM accounts_signintries", migrations.RunSQL.noop),
        migrations.AddField(
            model_name="signintries",
            name="name_digest",
            field=models.CharField(blank=True, db_index=True, default="", max_length=64),
        ),
        migrations.AddField(
            model_name="signintries",
            name="free_at",
            field=models.DateTimeField(default=timezone.now, help_text="when the next try is taken"),
            preserve_default=False,
        ),
    ]
