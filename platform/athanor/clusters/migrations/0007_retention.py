from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('clusters', '0006_accelerator_memory'),
    ]

    operations = [
        migrations.AddIndex(
            model_name='nodeincident',
            index=models.Index(fields=['time'], name='incidents_by_age'),
        ),
    ]
