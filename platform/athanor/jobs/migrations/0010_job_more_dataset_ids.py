from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('jobs', '0009_listed_by_indexes'),
    ]

    operations = [
        migrations.AddField(
            model_name='job',
            name='more_dataset_ids',
            field=models.JSONField(default=list),
        ),
    ]
