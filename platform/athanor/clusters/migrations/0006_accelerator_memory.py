from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("clusters", "0005_model_names"),
    ]

    operations = [
        migrations.AddField("Pool", "accelerator_memory_bytes", models.BigIntegerField(blank=True, null=True)),
        migrations.AddField("Node", "accelerator_memory_bytes", models.BigIntegerField(default=0, db_default=0)),
    ]
