from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('telemetry', '0007_system_series'),
    ]

    operations = [
        migrations.AddField(
            model_name='progress',
            name='progressed_at',
            field=models.DateTimeField(help_text='when the platform last received progress of the work', null=True),
        ),
    ]
