from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("artifacts", "0013_storage_of_earlier_jobs")]

    operations = [migrations.AddField("checkpoint", "damaged_at", models.DateTimeField(null=True))]
