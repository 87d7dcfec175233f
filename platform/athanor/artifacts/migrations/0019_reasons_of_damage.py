from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("artifacts", "0018_diverged_checkpoints")]

    operations = [migrations.AddField("checkpoint", "damage", models.TextField(blank=True, db_default="", default=""))]
