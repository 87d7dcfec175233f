from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("artifacts", "0014_damaged_checkpoints")]

    operations = [
        migrations.AddField("dataset", "fields", models.JSONField(null=True)),
        migrations.AddField(
            "dataset", "text_field", models.CharField(blank=True, db_default="", default="", max_length=100)
        ),
    ]
