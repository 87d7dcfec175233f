import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

from athanor.core import tenancy


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0017_team_requires_data_report'),
        ('artifacts', '0027_model_imports'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddField(
            model_name='dataset',
            name='version',
            field=models.PositiveIntegerField(db_default=1, default=1),
        ),
        migrations.AddField(
            model_name='deletion',
            name='version',
            field=models.PositiveIntegerField(null=True),
        ),
        migrations.CreateModel(
            name='DatasetAlias',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('dataset_name', models.CharField(max_length=300)),
                ('name', models.CharField(max_length=63)),
                ('moved_at', models.DateTimeField()),
                ('moved_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('team', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to='accounts.team')),
                ('version', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='aliases', to='artifacts.dataset')),
            ],
        ),
        migrations.AddConstraint(
            model_name='datasetalias',
            constraint=models.UniqueConstraint(fields=('team', 'dataset_name', 'name'), name='alias_is_unique_in_a_data_set'),
        ),
        tenancy.protect("artifacts_datasetalias"),
    ]
