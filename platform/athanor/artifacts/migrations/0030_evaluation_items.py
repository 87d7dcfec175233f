from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('artifacts', '0029_dataset_version_numbers'),
    ]

    operations = [
        migrations.AddField(
            model_name='evaluationresult',
            name='items',
            field=models.BinaryField(null=True),
        ),
    ]
