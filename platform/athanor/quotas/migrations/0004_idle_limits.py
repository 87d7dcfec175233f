from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('quotas', '0003_nominal_changes'),
    ]

    operations = [
        migrations.AddField(
            model_name='quotanode',
            name='idle_warning_seconds',
            field=models.PositiveIntegerField(null=True),
        ),
        migrations.AddField(
            model_name='quotanode',
            name='idle_pause_seconds',
            field=models.PositiveIntegerField(null=True),
        ),
    ]
